// SPDX-License-Identifier: Apache-2.0

// Package shim tests the preload library where it lives: in real processes. What it promises of itself (exports, no lock, no
// loader) is read from its ELF file; what it captures is compared with what each interpreter of the machine says; the ways in
// which profilers are known to hang or crash a program are run and must not. The unit tests in C are run by `make -C shim
// test`, attribution from end to end by the tests in examples.
package shim
