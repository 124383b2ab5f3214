// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"errors"
	"strconv"
	"strings"
)

// folderName is <host>-<pid>-<start>.
type folderName struct {
	host  string
	pid   int
	start uint64
}

func parseFolderName(name string) (folderName, error) {
	fail := func() (folderName, error) {
		return folderName{}, errors.New("want a folder named <host>-<pid>-<start>")
	}
	rest, start, ok := cutLast(name)
	if !ok {
		return fail()
	}
	host, pid, ok := cutLast(rest)
	if !ok || host == "" || len(host) > 64 || strings.Trim(host, hostCharacters) != "" || strings.HasPrefix(host, ".") {
		return fail()
	}
	f := folderName{host: host}
	var err error
	if f.start, err = parseDigits(start); err != nil {
		return fail()
	}
	p, err := parseDigits(pid)
	// A Linux pid is below 2^22 (PID_MAX_LIMIT in include/linux/threads.h).
	if err != nil || p == 0 || p > 1<<22 {
		return fail()
	}
	f.pid = int(p)
	return f, nil
}

const hostCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._"

// folderHost renders a host name as the shim does for the folder's name.
func folderHost(host string) string {
	if len(host) > 64 {
		host = host[:64]
	}
	b := []byte(host)
	for i, c := range b {
		if strings.IndexByte(hostCharacters, c) < 0 {
			b[i] = '_'
		}
	}
	return string(b)
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, '-')
	if i < 0 {
		return "", "", false
	}
	return s[:i], s[i+1:], true
}

func parseDigits(s string) (uint64, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, errors.New("want digits")
	}
	return strconv.ParseUint(s, 10, 64)
}

// shown is a name that anybody may have given, as it goes into an error.
func shown(name string) string {
	const most = 80
	if len(name) > most {
		return strings.ToValidUTF8(name[:most], "") + "…"
	}
	return name
}
