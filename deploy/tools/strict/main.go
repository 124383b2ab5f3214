// SPDX-License-Identifier: Apache-2.0

// Command strict reads Kubernetes objects, as YAML documents, from standard input, and says which of them have fields that
// their kinds do not know, or know by another type.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	n, err := check(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%d objects\n", n)
}

func check(in io.Reader) (n int, err error) {
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme} {
		if err := add(kinds); err != nil {
			return 0, err
		}
	}
	decoder := serializer.NewCodecFactory(kinds, serializer.EnableStrict).UniversalDeserializer()
	var errs []error
	for documents := yaml.NewYAMLReader(bufio.NewReader(in)); ; {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return n, errors.Join(errs...)
		}
		if err != nil {
			return n, err
		}
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		n++
		if _, kind, err := decoder.Decode(text, nil, nil); err != nil {
			errs = append(errs, fmt.Errorf("document %d, %v: %w", n, kind, err))
		}
	}
}
