// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64)

package run

import "syscall"

func watchOrigin(syscall.Signal) {}

func originOf(syscall.Signal) origin { return origin{} }
