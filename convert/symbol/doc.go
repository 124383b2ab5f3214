// SPDX-License-Identifier: Apache-2.0

// Package symbol names native frames from the symbol tables of the files they come from.
//
// In: a profile whose native locations have addresses and mappings (convert/jemalloc makes them), and the ELF files on
// this machine, or below another root. Out: a function for every native location: the demangled name where .symtab or
// .dynsym has one, else "libfoo.so!0x1234" with the address as the file counts it. Name is demangled, SystemName is the
// symbol as it stands.
//
// A name from another file than the one that ran is worse than none. Where the dump has a build id, the file at the path
// must have the same; otherwise its frames get addresses only, and [Report.Warnings] says so once a file. Where the dump
// has none there is nothing to compare, which the report says too.
//
// Files are read through their section table in small pieces and nothing of them is kept but the names that were asked
// for: the tables of large libraries hold hundreds of thousands of symbols. Hostile files cost bounded time and memory.
// Line numbers and inlined functions (DWARF) are not read.
package symbol
