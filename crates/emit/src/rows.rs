//! Rows of numbers: a first one, and steps. Of several steps the last one runs fastest, so that
//! from 0 by 2 times 4 and 2 times 1 are 0, 1, 4, 5.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) from: i64,
    /// How often, and how far.
    pub(crate) by: Vec<(usize, i64)>,
}

impl Row {
    /// `None` if the numbers are no row.
    pub(crate) fn from_numbers(numbers: &[i64]) -> Option<Row> {
        let mut heads = numbers.to_vec();
        let mut by = vec![];
        while heads.len() > 1 {
            let step = heads[1].checked_sub(heads[0])?;
            let run = heads.windows(2).take_while(|two| two[0].checked_add(step) == Some(two[1])).count() + 1;
            let equal = |block: &[i64]| {
                let mut both = block.iter().zip(&heads);
                block.len() == run
                    && both.all(|(n, head)| n.wrapping_sub(block[0]) == head.wrapping_sub(heads[0]))
            };
            if !heads.chunks(run).all(equal) {
                return None;
            }
            by.push((run, step));
            heads = heads.iter().copied().step_by(run).collect();
        }
        by.reverse();
        Some(Row { from: *heads.first()?, by })
    }

    /// How many there are; `None` if there are too many to be numbered.
    pub(crate) fn count(&self) -> Option<usize> {
        self.by.iter().try_fold(1_usize, |count, (size, _)| count.checked_mul(*size))
    }

    pub(crate) fn numbers(&self) -> Vec<i64> {
        self.by.iter().fold(vec![self.from], |numbers, (size, step)| {
            let steps = 0..i64::try_from(*size).unwrap_or(0);
            numbers
                .iter()
                .flat_map(|n| steps.clone().map(move |i| n.wrapping_add(i.wrapping_mul(*step))))
                .collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_and_walked() {
        for (numbers, by) in [
            (vec![7], Some(vec![])),
            (vec![0, 1, 2, 3], Some(vec![(4, 1)])),
            (vec![0, 1, 4, 5], Some(vec![(2, 4), (2, 1)])),
            (vec![8, 8, 4, 4], Some(vec![(2, -4), (2, 0)])),
            (vec![0, 1, 3], None),
            (vec![0, 1, 4, 6], None),
            (vec![i64::MIN, i64::MAX], None),
        ] {
            let row = Row::from_numbers(&numbers);
            assert_eq!(row.clone().map(|row| row.by), by, "{numbers:?}");
            if let Some(row) = row {
                assert_eq!((row.numbers(), row.count()), (numbers.clone(), Some(numbers.len())));
            }
        }
    }
}
