package measure

import "gonum.org/v1/gonum/stat/distuv"

// Interval is the exact (Clopper-Pearson) 95 % confidence interval for the
// probability behind k of n.
func Interval(k, n int) (low, high float64) {
	const tail = 0.025
	low, high = 0, 1
	if n == 0 {
		return low, high
	}
	a, b := float64(k), float64(n-k)
	if k > 0 {
		low = distuv.Beta{Alpha: a, Beta: b + 1}.Quantile(tail)
	}
	if k < n {
		high = distuv.Beta{Alpha: a + 1, Beta: b}.Quantile(1 - tail)
	}
	return low, high
}
