//! When to stop looking.

use std::time::{Duration, Instant};

/// Says whether it is late. Who was told so once is told so ever after.
#[derive(Clone, Copy, Default)]
pub struct Stop<'s> {
    is_late: Option<&'s (dyn Fn() -> bool + Sync)>,
    end: Option<Instant>,
    /// Until then something is still looked for that fits, if nothing does so far.
    last: Option<Instant>,
}

/// So long something that fits is looked for at least, once it is late.
const LONGER: Duration = Duration::from_secs(60);

impl<'s> Stop<'s> {
    pub fn when(is_late: &'s (dyn Fn() -> bool + Sync)) -> Self {
        Self { is_late: Some(is_late), ..Self::default() }
    }

    /// After so long. Where nothing fits by then, it is looked for as long again.
    pub fn after(self, deadline: Duration) -> Self {
        let end = Instant::now() + deadline;
        Self { last: Some(end + deadline.max(LONGER)), ..self.at(end) }
    }

    /// What fits is not looked for after the end, either.
    pub fn for_no_longer(self) -> Self {
        Self { last: self.end, ..self }
    }

    /// At that time, too.
    pub(crate) fn at(self, end: Instant) -> Self {
        Self { end: Some(self.end.map_or(end, |current| current.min(end))), ..self }
    }

    /// Of the time that is left, if there is an end, so much.
    pub(crate) fn share(self, share: f64) -> Self {
        let now = Instant::now();
        let share_of = |end: Instant| now + end.saturating_duration_since(now).mul_f64(share);
        Self { end: self.end.map(share_of), ..self }
    }

    /// Whether nothing is looked for any more, even if nothing fits.
    pub(crate) fn is_over(self) -> bool {
        self.last.is_some_and(|last| Instant::now() >= last)
    }

    pub(crate) fn end(self) -> Option<Instant> {
        self.end
    }

    pub(crate) fn is_late(self) -> bool {
        self.is_late.is_some_and(|is_late| is_late()) || self.end.is_some_and(|end| Instant::now() >= end)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_share_ends_before_the_whole() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        let whole = Stop::default().at(now + hour);
        let half = whole.share(0.5).end.expect("the whole has an end");
        assert!(half >= now + hour / 2 && half < now + hour * 6 / 10);
        assert_eq!(Stop::default().share(0.5).end, None);
        assert_eq!(whole.at(now + 2 * hour).end, whole.end);
        assert!(!whole.is_late() && Stop::default().at(now).share(0.5).is_late());
    }

    #[test]
    fn what_fits_is_looked_for_as_long_again() {
        let hour = Duration::from_secs(3600);
        let stop = Stop::default().after(hour);
        let (end, last) = (stop.end.expect("an end"), stop.last.expect("a last moment"));
        assert_eq!(last - end, hour);
        let soon = Stop::default().after(Duration::ZERO);
        assert!(soon.is_late() && !soon.is_over() && !Stop::default().is_over());
        assert!(soon.for_no_longer().share(0.5).is_over());
    }
}
