//! A computation, number by number, and back through it: each number knows of which others it was made, and its
//! derivative by each. So backward is the same for every operator.

use std::rc::Rc;

use crate::number::Num;

/// What its elements are, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementKind {
    Float,
    Int,
    Bool,
}

/// A tensor between codes.
#[derive(Clone, Debug)]
pub struct Value {
    pub kind: ElementKind,
    pub shape: Vec<usize>,
    pub data: Rc<[Num]>,
}

/// A tensor inside of one: the places of its numbers on the tape.
#[derive(Clone, Debug)]
pub struct T {
    pub kind: ElementKind,
    pub shape: Vec<usize>,
    pub at: Rc<[u32]>,
}

pub struct Tape {
    values: Vec<Num>,
    /// Whether a gradient is wanted of it.
    needs: Vec<bool>,
    /// Where the edges of each number begin.
    starts: Vec<u32>,
    edges: Vec<(u32, Num)>,
    /// Off where the model has gradients off.
    pub records: bool,
}

impl Value {
    pub fn new(kind: ElementKind, shape: Vec<usize>, data: Vec<Num>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), data.len());
        Self { kind, shape, data: data.into() }
    }

    pub fn zeros(shape: Vec<usize>) -> Self {
        let count = shape.iter().product();
        Self::new(ElementKind::Float, shape, vec![Num::ZERO; count])
    }

    pub fn map(&self, f: impl Fn(Num) -> Num) -> Self {
        Self { data: self.data.iter().map(|x| f(*x)).collect(), ..self.clone() }
    }

    pub fn zip(&self, other: &Self, f: impl Fn(Num, Num) -> Num) -> Self {
        Self {
            data: self.data.iter().zip(other.data.iter()).map(|(a, b)| f(*a, *b)).collect(),
            ..self.clone()
        }
    }
}

impl T {
    pub fn new(kind: ElementKind, shape: Vec<usize>, at: Vec<u32>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), at.len());
        Self { kind, shape, at: at.into() }
    }

    pub fn numel(&self) -> usize {
        self.at.len()
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }
}

impl Tape {
    pub fn new() -> Self {
        Self { values: vec![], needs: vec![], starts: vec![0], edges: vec![], records: true }
    }

    pub fn len(&self) -> usize {
        self.values.len() + self.edges.len()
    }

    pub fn value(&self, at: u32) -> Num {
        self.values[at as usize]
    }

    pub fn needs(&self, at: u32) -> bool {
        self.needs[at as usize]
    }

    pub fn leaf(&mut self, value: Num, needs: bool) -> u32 {
        self.push(value, needs)
    }

    pub fn constant(&mut self, value: Num) -> u32 {
        self.push(value, false)
    }

    pub fn node(&mut self, value: Num, edges: impl IntoIterator<Item = (u32, Num)>) -> u32 {
        if self.records {
            let needs = &self.needs;
            self.edges.extend(edges.into_iter().filter(|(at, _)| needs[*at as usize]));
        }
        let grows = self.edges.len() > self.starts[self.values.len()] as usize;
        self.push(value, grows)
    }

    fn push(&mut self, value: Num, needs: bool) -> u32 {
        self.values.push(value);
        self.needs.push(needs);
        self.starts.push(u32::try_from(self.edges.len()).expect("a computation is bounded"));
        u32::try_from(self.values.len() - 1).expect("a computation is bounded")
    }

    /// The gradients of all numbers, given those of some.
    pub fn back(&self, seeds: impl IntoIterator<Item = (u32, Num)>) -> Vec<Num> {
        let mut gradients = vec![Num::ZERO; self.values.len()];
        for (at, seed) in seeds {
            gradients[at as usize] = gradients[at as usize].plus(seed);
        }
        for at in (0..self.values.len()).rev() {
            let gradient = gradients[at];
            if gradient == Num::ZERO {
                continue;
            }
            for (from, by) in &self.edges[self.starts[at] as usize..self.starts[at + 1] as usize] {
                let from = *from as usize;
                gradients[from] = gradients[from].plus(gradient.times(*by));
            }
        }
        gradients
    }

    pub fn enter(&mut self, value: &Value, needs: bool) -> T {
        let needs = needs && value.kind == ElementKind::Float;
        let at = value.data.iter().map(|x| self.leaf(*x, needs)).collect();
        T { kind: value.kind, shape: value.shape.clone(), at }
    }

    pub fn leave(&self, x: &T) -> Value {
        Value { kind: x.kind, shape: x.shape.clone(), data: x.at.iter().map(|at| self.value(*at)).collect() }
    }
}
