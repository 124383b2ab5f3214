// SPDX-License-Identifier: Apache-2.0

// Package run starts a job in the foreground and stands between it and whoever started it without being noticed: the
// job has the terminal, the standard streams, the signals and the exit status that it would have without us.
//
// The job stays in our process group. What the terminal sends (Ctrl-C, Ctrl-\, Ctrl-Z, a hang-up) therefore reaches it
// without us, and must not be sent on, or it would come twice; what another process sends to us alone must be sent on.
// The two look alike to a Go program, except through the sender's code in siginfo, which os/signal drops. So [Main]
// starts the program again with these signals blocked, and they are read, siginfo included, from a signalfd.
package run
