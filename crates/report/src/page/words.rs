//! How numbers are said in sentences.

/// `12.3 ms`: three digits that count.
pub(crate) fn time(seconds: f64) -> String {
    let size = seconds.abs();
    let (scale, unit) = match size {
        0.0 => return "0".to_owned(),
        it if it >= 1.0 => (1.0, "s"),
        it if it >= 1e-3 => (1e3, "ms"),
        it if it >= 1e-6 => (1e6, "µs"),
        _ => (1e9, "ns"),
    };
    format!("{} {unit}", digits(seconds * scale))
}

/// `1.5 GiB`.
pub(crate) fn bytes(bytes: f64) -> String {
    let mut size = bytes;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if size < 1024.0 {
            return if unit == "B" { format!("{size:.0} B") } else { format!("{size:.1} {unit}") };
        }
        size /= 1024.0;
    }
    format!("{size:.1} TiB")
}

fn digits(number: f64) -> String {
    match number.abs() {
        it if it >= 100.0 => format!("{number:.0}"),
        it if it >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, time};

    #[test]
    fn three_digits_count() {
        let said = [0.0, 2.5, 0.0123, 1.5e-4, 3e-9].map(time);
        assert_eq!(said, ["0", "2.50 s", "12.3 ms", "150 µs", "3.00 ns"]);
        assert_eq!([12.0, 1536.0, 3.0 * 1024f64.powi(3)].map(bytes), ["12 B", "1.5 KiB", "3.0 GiB"]);
    }
}
