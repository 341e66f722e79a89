//! What the first segments of a model take at least, on devices with so much memory.
//!
//! Whoever divides them chooses for each what is computed again: seconds and bytes of all its devices. With any price for a
//! byte their sum is no less than the sum of what is least for each; and bytes that fit cost no more than those that there
//! are. So what is left, without the price of these, is a bound, and the largest one over a few prices counts.

/// Device-seconds of a micro-batch, and bytes of all devices, of each segment.
pub(super) type SegmentCosts = Vec<(f64, f64)>;

#[derive(Default)]
pub(super) struct Left {
    /// By the price of a byte what the first segments come to.
    prices: Vec<(f64, Vec<f64>)>,
    /// Bytes of a device.
    limit: f64,
}

impl Left {
    /// Of ways for all segments: for each kind of group and for each set of what is computed again.
    pub(super) fn new(ways: &[Vec<SegmentCosts>]) -> Self {
        let all = || ways.iter().flatten();
        let count = all().map(Vec::len).max().unwrap_or(0);
        let of_price = |price: f64| {
            let mut first = vec![0.0];
            for segment in 0..count {
                let costs = all().map(|way| way[segment].0 + price * way[segment].1);
                first.push(first[segment] + costs.fold(f64::INFINITY, f64::min));
            }
            (price, first)
        };
        let mut prices: Vec<f64> = vec![0.0];
        for (one, other) in pairs(ways) {
            let price = (other.0 - one.0) / (one.1 - other.1);
            prices.extend((price.is_finite() && price > 0.0).then_some(price));
        }
        Self { prices: prices.into_iter().map(of_price).collect(), limit: f64::INFINITY }
    }

    pub(super) fn limit(&mut self, bytes: u64) {
        self.limit = bytes as f64;
    }

    /// Device-seconds of a micro-batch in the first segments, on so many devices.
    pub(super) fn least(&self, segments: usize, devices: u32) -> f64 {
        let all = f64::from(devices) * self.limit;
        // Without a price bytes cost nothing, however many there are.
        let bytes = |price: f64| if price > 0.0 { price * all } else { 0.0 };
        // Where it was late nothing is known.
        let at_price =
            |(price, first): &(f64, Vec<f64>)| first.get(segments).map_or(0.0, |all| all - bytes(*price));
        self.prices.iter().map(at_price).fold(0.0, f64::max)
    }
}

/// Seconds and bytes of a whole model in two ways on one kind of group, of which the second computes more again.
fn pairs(ways: &[Vec<SegmentCosts>]) -> Vec<((f64, f64), (f64, f64))> {
    let sum = |way: &SegmentCosts| {
        way.iter().fold((0.0, 0.0), |all, segment| (all.0 + segment.0, all.1 + segment.1))
    };
    let mut pairs = vec![];
    // Prices may be any; those of the largest group are near to those of all.
    let sums: Vec<(f64, f64)> = ways.last().into_iter().flatten().map(sum).collect();
    for (at, one) in sums.iter().enumerate() {
        pairs.extend(sums[at + 1..].iter().map(|other| (*one, *other)));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All choices, one by one.
    fn least(ways: &[Vec<SegmentCosts>], segments: usize, bytes: f64) -> f64 {
        let mut all = vec![(0.0, 0.0)];
        for segment in 0..segments {
            let choices: Vec<(f64, f64)> = ways.iter().flatten().map(|way| way[segment]).collect();
            all = all
                .iter()
                .flat_map(|sum| choices.iter().map(move |it| (sum.0 + it.0, sum.1 + it.1)))
                .collect();
        }
        all.into_iter().filter(|it| it.1 <= bytes).map(|it| it.0).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn nothing_takes_less() {
        let ways = [
            vec![vec![(1.0, 9.0), (2.0, 9.0), (1.0, 5.0)], vec![(2.0, 3.0), (3.0, 2.0), (2.0, 4.0)]],
            vec![vec![(1.5, 8.0), (1.5, 8.0), (1.5, 8.0)], vec![(2.5, 2.0), (2.5, 2.0), (2.5, 2.0)]],
        ];
        let mut left = Left::new(&ways);
        let mut closest = 0.0_f64;
        for segments in 0..=3 {
            for bytes in 0..30 {
                left.limit(bytes);
                let (bound, least) = (left.least(segments, 1), least(&ways, segments, bytes as f64));
                assert!(bound <= least + 1e-9, "{segments} {bytes}: {bound} {least}");
                if least.is_finite() && least > left.prices[0].1[segments] {
                    closest = closest.max(bound / least);
                }
            }
        }
        // It knows of bytes.
        assert!(closest > 0.9, "{closest}");
    }
}
