// SPDX-License-Identifier: Apache-2.0

// Package run starts a job in the foreground and stands between it and whoever started it without being noticed: the
// job has the terminal, the standard streams, the signals and the exit status that it would have without us.
//
// The job stays in our process group. What the terminal sends (Ctrl-C, Ctrl-\, Ctrl-Z, a hang-up) therefore reaches it
// without us, and must not be sent on, or it would come twice; what another process sends to us alone must be sent on.
// The two look alike to a Go program, so a signal that a terminal can send counts as the terminal's while our group has
// it. A job without a terminal, or in the background, gets everything.
//
// What is lost: SIGINT, SIGQUIT, SIGHUP, SIGTSTP or SIGWINCH that another process sends to us alone while we are in the
// foreground of a terminal. Send it to the job, or send SIGTERM.
//
// What cannot be told apart: a signal that another process sends to our whole group, or to every process of a job step,
// as Slurm does, reaches the job twice. What we cannot see: signals other than SIGHUP, SIGINT and SIGQUIT that were
// ignored when we were started; the job has them with their default action, as the Go runtime has replaced it before we
// run. Nor can the job have SIGCHLD, SIGPROF, SIGSTKFLT, signal 34 or a fault blocked because whoever started us had: the runtime
// unblocks these.
package run
