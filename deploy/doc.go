// SPDX-License-Identifier: Apache-2.0

// Package deploy holds no code: its tests check the deployments beside it, and the dashboard, against what the code does.
package deploy
