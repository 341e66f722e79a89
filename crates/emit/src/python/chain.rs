//! Chains of `.name` and `[index]`: as long as a path through a model's modules, so none of what is done with them
//! goes down by recursion.

use std::ops::{Deref, DerefMut};

use super::Expr;

/// What stands before a `.` or a `[`.
#[derive(Debug)]
pub(crate) struct Object<'a>(Box<Expr<'a>>);

impl<'a> Object<'a> {
    pub(crate) fn new(expr: Expr<'a>) -> Self {
        Self(Box::new(expr))
    }
}

impl<'a> Deref for Object<'a> {
    type Target = Expr<'a>;

    fn deref(&self) -> &Expr<'a> {
        &self.0
    }
}

impl DerefMut for Object<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Clone for Object<'_> {
    fn clone(&self) -> Self {
        Self::new(self.along(Expr::clone, <[Expr<'_>]>::to_vec))
    }
}

impl PartialEq for Object<'_> {
    fn eq(&self, other: &Self) -> bool {
        let (mut this, mut other) = (&*self.0, &*other.0);
        loop {
            (this, other) = match (this, other) {
                (Expr::Attr(a, x), Expr::Attr(b, y)) if x == y => (a, b),
                (Expr::Index(a, x), Expr::Index(b, y)) if x == y => (a, b),
                (Expr::Attr(..) | Expr::Index(..), _) => return false,
                _ => return this == other,
            };
        }
    }
}

impl Drop for Object<'_> {
    fn drop(&mut self) {
        let mut open = std::mem::replace(&mut *self.0, Expr::None);
        while let Expr::Attr(object, _) | Expr::Index(object, _) = &mut open {
            open = std::mem::replace(&mut *object.0, Expr::None);
        }
    }
}

impl<'a> Expr<'a> {
    /// What a chain begins with, and its links from there on, each with all before it.
    pub(crate) fn links(&self) -> (&Self, impl Iterator<Item = &Self>) {
        let (mut start, mut links) = (self, vec![]);
        while let Expr::Attr(object, _) | Expr::Index(object, _) = start {
            links.push(start);
            start = object;
        }
        (start, links.into_iter().rev())
    }

    /// The same chain, with its beginning and its subscripts made anew.
    pub(crate) fn along(
        &self,
        start: impl FnOnce(&Self) -> Self,
        subscripts: impl Fn(&[Self]) -> Vec<Self>,
    ) -> Self {
        let (first, links) = self.links();
        links.fold(start(first), |chain, link| match link {
            Expr::Attr(_, name) => chain.attr(name),
            Expr::Index(_, all) => chain.index(subscripts(all)),
            _ => chain,
        })
    }
}
