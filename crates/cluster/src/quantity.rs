//! Numbers with units, as people write them: `80 GB`, `3.35 TB/s`, `989 TFLOP/s`, `14 us`.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    BytesPerSecond,
    OperationsPerSecond,
    Seconds,
    Share,
}

const LARGE: [(&str, f64); 11] = [
    ("", 1.0),
    ("k", 1e3),
    ("K", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("Ki", 1024.0),
    ("Mi", 1024.0 * 1024.0),
    ("Gi", 1024.0 * 1024.0 * 1024.0),
    ("Ti", 1024.0 * 1024.0 * 1024.0 * 1024.0),
];
const SMALL: [(&str, f64); 5] = [("", 1.0), ("m", 1e-3), ("u", 1e-6), ("µ", 1e-6), ("n", 1e-9)];

impl Unit {
    /// One in base units. The message says what is expected.
    pub fn read(self, text: &str) -> Result<f64, String> {
        let text = text.trim();
        let end = text.find(|c: char| !(c.is_ascii_digit() || ".+-e".contains(c))).unwrap_or(text.len());
        // The `e` of a number; units have none.
        let (number, unit) = text.split_at(end);
        let value = number.trim().parse::<f64>().ok().zip(self.factor(unit.trim()));
        let scaled = value.map(|(number, factor)| number * factor);
        scaled.filter(|value| value.is_finite()).ok_or_else(|| format!("it is {}", self.expected()))
    }

    pub fn expected(self) -> &'static str {
        match self {
            Unit::Bytes => "a number of bytes, such as \"80 GB\" or \"16 GiB\"",
            Unit::BytesPerSecond => "a rate, such as \"3.35 TB/s\" or \"100 Gbit/s\"",
            Unit::OperationsPerSecond => "a rate, such as \"989 TFLOP/s\"",
            Unit::Seconds => "a time, such as \"14 us\"",
            Unit::Share => "a number above 0 and at most 1, such as \"0.8\"",
        }
    }

    fn factor(self, unit: &str) -> Option<f64> {
        let large = |suffix: &str| scale(unit.strip_suffix(suffix)?, &LARGE);
        match self {
            Unit::Bytes => large("B"),
            Unit::BytesPerSecond => large("B/s")
                .or_else(|| ["bit/s", "b/s"].iter().find_map(|suffix| large(suffix)).map(|f| f / 8.0)),
            Unit::OperationsPerSecond => ["FLOP/s", "FLOPS", "OP/s"].iter().find_map(|suffix| large(suffix)),
            Unit::Seconds => scale(unit.strip_suffix('s')?, &SMALL),
            Unit::Share => unit.is_empty().then_some(1.0),
        }
    }
}

fn scale(prefix: &str, scales: &[(&str, f64)]) -> Option<f64> {
    scales.iter().find(|(name, _)| *name == prefix.trim()).map(|(_, factor)| *factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units() {
        assert_eq!(Unit::Bytes.read("80 GB"), Ok(80e9));
        assert_eq!(Unit::Bytes.read("16GiB"), Ok(16.0 * 1_073_741_824.0));
        assert_eq!(Unit::BytesPerSecond.read("100 Gbit/s"), Ok(12.5e9));
        assert_eq!(Unit::BytesPerSecond.read("3.35 TB/s"), Ok(3.35e12));
        assert_eq!(Unit::OperationsPerSecond.read("9.89e2 TFLOP/s"), Ok(989e12));
        assert!((Unit::Seconds.read("14 us").unwrap_or(0.0) - 14e-6).abs() < 1e-12);
        assert_eq!(Unit::Share.read("0.8"), Ok(0.8));
        for (unit, text) in [
            (Unit::Bytes, "80"),
            (Unit::Bytes, "80 GB/s"),
            (Unit::Bytes, "many"),
            (Unit::BytesPerSecond, "3 TB"),
            (Unit::Seconds, "1e999 s"),
            (Unit::Share, ""),
        ] {
            assert!(unit.read(text).is_err(), "{text}");
        }
    }
}
