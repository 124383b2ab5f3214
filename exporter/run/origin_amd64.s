// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// The note. The kernel calls it as a C function: DI the signal, SI siginfo_t, DX the context; all three go on untouched
// to the displaced handler. It uses registers that a C function may spoil. siginfo_t: si_code at 8, si_pid at 16.
TEXT ·note(SB), NOSPLIT|NOFRAME|TOPFRAME, $0-0
	MOVL	8(SI), AX
	MOVL	16(SI), CX
	SHLQ	$32, CX
	ORQ	AX, CX
	MOVL	DI, R9
	LEAQ	·origins(SB), R8
	MOVQ	CX, (R8)(R9*8)
	LEAQ	·handlers(SB), R8
	MOVQ	(R8)(R9*8), R8
	JMP	R8

DATA ·noteAddress(SB)/8, $·note(SB)
GLOBL ·noteAddress(SB), NOPTR, $8
