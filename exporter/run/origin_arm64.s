// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// The note. The kernel calls it as a C function: R0 the signal, R1 siginfo_t, R2 the context; all three go on untouched
// to the displaced handler. It uses registers that a C function may spoil. siginfo_t: si_code at 8, si_pid at 16.
TEXT ·note(SB), NOSPLIT|NOFRAME|TOPFRAME, $0-0
	MOVWU	8(R1), R9
	MOVWU	16(R1), R10
	LSL	$32, R10
	ORR	R9, R10
	MOVWU	R0, R12
	MOVD	$·origins(SB), R11
	ADD	R12<<3, R11
	MOVD	R10, (R11)
	MOVD	$·handlers(SB), R11
	ADD	R12<<3, R11
	MOVD	(R11), R11
	JMP	(R11)

DATA ·noteAddress(SB)/8, $·note(SB)
GLOBL ·noteAddress(SB), NOPTR, $8
