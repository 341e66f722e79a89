//! When to stop looking.

/// Says whether it is late. Who was told so once is told so ever after.
#[derive(Clone, Copy, Default)]
pub struct Stop<'s>(Option<&'s (dyn Fn() -> bool + Sync)>);

impl<'s> Stop<'s> {
    pub fn when(is_late: &'s (dyn Fn() -> bool + Sync)) -> Self {
        Self(Some(is_late))
    }

    pub(crate) fn is_late(self) -> bool {
        self.0.is_some_and(|is_late| is_late())
    }
}
