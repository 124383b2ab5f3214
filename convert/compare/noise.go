// SPDX-License-Identifier: Apache-2.0

package compare

import "math"

// variance is the square of the standard error of an estimate of live bytes, by the mean size of the objects and the mean
// number of bytes between samples: each object is sampled with the probability p = 1-exp(-z/R) and counts as z/p then, which
// has the variance z²(1-p)/p. Where sizes differ their mean makes it too large: z/(exp(z/R)-1) falls with z, and the mean by
// number is below the mean by bytes. Without a count of objects they are taken as small.
func variance(bytes, objects, rate float64) float64 {
	if bytes <= 0 || rate <= 1 {
		return 0
	}
	if objects <= 0 {
		return bytes * rate
	}
	z := bytes / objects
	x := z / rate
	if x < 1e-9 {
		return bytes * rate
	}
	return bytes * z / math.Expm1(x)
}

// confidence is the probability that a change of z standard errors is one, by the normal distribution.
func confidence(z float64) float64 { return 0.5 * (1 + math.Erf(z/math.Sqrt2)) }

// deviations is a change in standard errors. What was measured without error stands out, however small.
func deviations(change, sigma float64) float64 {
	switch {
	case change == 0:
		return 0
	case sigma == 0:
		return math.Copysign(exact, change)
	}
	return max(-exact, min(exact, change/sigma))
}

// exact stands for a change without any sampling error.
const exact = 40
