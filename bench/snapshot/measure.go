// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
)

type options struct {
	python, dir, generator, only string
	rounds                       int
}

func (o *options) measure(context.Context, io.Writer) error { return errOver }
