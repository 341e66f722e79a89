//! Reading values of `program.json`, with the place in every refusal.

use diag::{Error, Result};
use serde_json::{Map, Value};

/// A value and where it is: `roles[3].shards`.
#[derive(Clone)]
pub(super) struct Node<'a> {
    pub(super) value: &'a Value,
    pub(super) place: Place<'a>,
}

/// The way to a value, put into words only when something is refused.
#[derive(Clone)]
pub(super) enum Place<'a> {
    Top,
    Key(&'a Node<'a>, &'a str),
    Item(&'a Node<'a>, usize),
}

impl Node<'_> {
    fn path(&self) -> String {
        match &self.place {
            Place::Top => String::new(),
            Place::Key(outer, key) => format!("{}.{}", outer.path(), key.escape_debug()),
            Place::Item(outer, index) => format!("{}[{index}]", outer.path()),
        }
    }

    pub(super) fn refuse(&self, what: impl Into<String>) -> Error {
        let path = self.path();
        let path = path.trim_start_matches('.');
        let place = if path.is_empty() { "program.json".to_owned() } else { format!("program.json: {path}") };
        Error::new("SW0602", what).at(place).fix("see docs/reference/emitted-program.md, or compile again")
    }

    fn object(&self) -> Result<&Map<String, Value>> {
        self.value.as_object().ok_or_else(|| self.refuse("an object is expected here"))
    }

    fn array(&self) -> Result<&Vec<Value>> {
        self.value.as_array().ok_or_else(|| self.refuse("a list is expected here"))
    }

    pub(super) fn get<'n>(&'n self, key: &'n str) -> Result<Node<'n>> {
        match self.object()?.get(key) {
            Some(value) => Ok(Node { value, place: Place::Key(self, key) }),
            None => Err(self.refuse(format!("`{key}` is missing"))),
        }
    }

    /// What is there only where it says something.
    pub(super) fn maybe<'n>(&'n self, key: &'n str) -> Result<Option<Node<'n>>> {
        let entry = self.object()?.get(key);
        Ok(entry.map(|value| Node { value, place: Place::Key(self, key) }))
    }

    /// Reads every item of a list.
    pub(super) fn list<T>(&self, mut read: impl FnMut(&Node<'_>) -> Result<T>) -> Result<Vec<T>> {
        let items = self.array()?.iter().enumerate();
        items.map(|(index, value)| read(&Node { value, place: Place::Item(self, index) })).collect()
    }

    /// Reads every entry of an object whose keys are numbers.
    pub(super) fn entries<T>(&self, mut read: impl FnMut(u32, &Node<'_>) -> Result<T>) -> Result<Vec<T>> {
        let entries = self.object()?.iter();
        let read_one = |(key, value): (&String, &Value)| {
            let node = Node { value, place: Place::Key(self, key) };
            let number = key.parse().map_err(|_| node.refuse("the key is not a number"))?;
            read(number, &node)
        };
        entries.map(read_one).collect()
    }

    /// A list of exactly so many items.
    pub(super) fn tuple<const N: usize>(&self) -> Result<[Node<'_>; N]> {
        let items = self.array()?;
        let exact: &[Value; N] = items
            .as_slice()
            .try_into()
            .map_err(|_| self.refuse(format!("a list of {N} is expected here")))?;
        let mut index = 0;
        Ok(exact.each_ref().map(|value| {
            index += 1;
            Node { value, place: Place::Item(self, index - 1) }
        }))
    }

    pub(super) fn string(&self) -> Result<String> {
        self.value.as_str().map(str::to_owned).ok_or_else(|| self.refuse("a string is expected here"))
    }

    pub(super) fn int(&self) -> Result<i64> {
        self.value.as_i64().ok_or_else(|| self.refuse("an integer is expected here"))
    }

    pub(super) fn id(&self) -> Result<u32> {
        let id = self.value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| self.refuse("a number from 0 on is expected here"))
    }

    pub(super) fn index(&self) -> Result<usize> {
        Ok(self.id()? as usize)
    }

    pub(super) fn bool(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.refuse("true or false is expected here"))
    }

    pub(super) fn is_object(&self) -> bool {
        self.value.is_object()
    }

    pub(super) fn is_int(&self) -> bool {
        self.value.is_i64()
    }

    /// How many items a list has.
    pub(super) fn len(&self) -> Result<usize> {
        Ok(self.array()?.len())
    }

    pub(super) fn is_null(&self) -> bool {
        self.value.is_null()
    }
}

pub(super) fn int(node: &Node<'_>) -> Result<i64> {
    node.int()
}

pub(super) fn string(node: &Node<'_>) -> Result<String> {
    node.string()
}

pub(super) fn index(node: &Node<'_>) -> Result<usize> {
    node.index()
}
