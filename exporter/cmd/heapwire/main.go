// SPDX-License-Identifier: Apache-2.0

// Heapwire profiles the memory of Python and C++ jobs: it runs a job with the shim, converts dumps, and sends them on.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Exit statuses; run has the job's own beside them.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitOver    = 3 // growth --fail-on, diff --fail-over
)

// version is set by the linker: -ldflags "-X main.version=1.2.3".
var version = ""

func currentVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// statusError ends the program with a status of its own. Without err there is nothing to be said.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("status %d", e.status)
	}
	return e.err.Error()
}
func (e *statusError) Unwrap() error { return e.err }

func usage(err error) error { return &statusError{status: exitUsage, err: err} }

func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

func main() { os.Exit(execute(os.Args[1:])) }

func execute(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	called, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	status := exitFailure
	var own *statusError
	if errors.As(err, &own) {
		status = own.status
		if own.err == nil {
			return status
		}
	}
	fmt.Fprintf(os.Stderr, "heapwire: %v\n", err)
	if status == exitUsage {
		fmt.Fprintf(os.Stderr, "heapwire: see %s --help\n", called.CommandPath())
	}
	return status
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "heapwire",
		Short: "Which line holds the memory, and since when",
		Long: `Heapwire tells which line of a Python or C++ job holds the memory.

Exit status: 0 fine, 1 failure, 2 wrong usage, 3 over what diff --fail-over or growth --fail-on allow; "heapwire run" has the
job's own.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("no command %q", args[0])
			}
			return nil
		},
		RunE:              func(*cobra.Command, []string) error { return usagef("no command") },
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.SetOut(os.Stdout)
	root.SetErr(os.Stderr)
	root.AddCommand(newRun(), newConvert(), newPush(), newGrowth(), newDiff(), newEnv(), newVersion())
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  heapwire version",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "heapwire", currentVersion())
			return err
		},
	}
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}
