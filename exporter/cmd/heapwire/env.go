// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/heapwire/heapwire/exporter/run"
)

func newEnv() *cobra.Command {
	var (
		shim  shimFlags
		shell string
	)
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Print the variables that inject the shim",
		Long: `Env prints the environment variables that inject the shim into a job that something else starts. Dumps then stay in the
spool until a reader takes them; where a sink's variable is set, the job sends them itself.`,
		Example: `  eval "$(heapwire env --interval 10s)"; python train.py`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			render, ok := shells[shell]
			if !ok {
				return usagef("--shell %q: want sh, docker or k8s", shell)
			}
			vars, err := shim.settings(cmd)
			if err != nil {
				return err
			}
			library, err := shim.library()
			if err != nil {
				return err
			}
			if _, err := run.Preload(nil, library); err != nil {
				return err
			}
			vars = append([][2]string{{"LD_PRELOAD", library}}, vars...)
			if python, err := run.FindPython(library); err == nil {
				vars = slices.Insert(vars, 1, [2]string{"PYTHONPATH", python})
			}
			if shim.spool != "" {
				vars = append(vars, [2]string{"HEAPWIRE_SPOOL", shim.spool})
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), render(vars))
			return err
		},
	}
	shim.register(cmd)
	cmd.Flags().StringVar(&shim.spool, "spool", "", "the folder dumps are written to (HEAPWIRE_SPOOL)")
	cmd.Flags().StringVar(&shell, "shell", "sh", "sh, docker (options of docker run) or k8s (a container's env)")
	return cmd
}

var shells = map[string]func(vars [][2]string) string{
	"sh": func(vars [][2]string) string {
		var b strings.Builder
		for _, v := range vars {
			value := quoteShell(v[1])
			if v[0] == "LD_PRELOAD" || v[0] == "PYTHONPATH" {
				value += `"${` + v[0] + `:+:$` + v[0] + `}"`
			}
			fmt.Fprintf(&b, "export %s=%s\n", v[0], value)
		}
		return b.String()
	},
	"docker": func(vars [][2]string) string {
		var options []string
		for _, v := range vars {
			options = append(options, "-e "+quoteShell(v[0]+"="+v[1]))
		}
		return strings.Join(options, " ") + "\n"
	},
	"k8s": func(vars [][2]string) string {
		var b strings.Builder
		b.WriteString("env:\n")
		for _, v := range vars {
			// A double-quoted YAML scalar takes a Go string's escapes for what occurs in paths and numbers.
			fmt.Fprintf(&b, "- name: %s\n  value: %q\n", v[0], v[1])
		}
		return b.String()
	},
}

func quoteShell(s string) string {
	if s != "" && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-=") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
