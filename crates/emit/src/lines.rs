//! In which lines of the files a program's instructions stand, for errors about them.

use std::collections::HashMap;

use program::CodeKey;

/// Of a program, in the order of its roles.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    pub(crate) roles: Vec<LinesOfRole>,
}

/// Of one instruction. Iterations of a loop have the same lines.
#[derive(Clone, Debug, Default)]
pub struct Line {
    pub line: u32,
    /// Of the operators that it calls.
    pub ops: Vec<u32>,
    /// The function that a call runs.
    pub function: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct LinesOfRole {
    file: String,
    /// By block and pass, in the order of the code.
    codes: HashMap<CodeKey, Vec<Line>>,
    /// What its calls are called, in their order.
    pub(crate) calls: Vec<String>,
}

impl LinesOfRole {
    pub(crate) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), codes: HashMap::new(), calls: vec![] }
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    pub(crate) fn put(&mut self, code: CodeKey, lines: Vec<Line>) {
        self.codes.insert(code, lines);
    }
}

impl Lines {
    pub fn file(&self, role: usize) -> Option<&str> {
        Some(&self.roles.get(role)?.file)
    }

    /// Of the instruction with this number in a code of a role.
    pub fn line(&self, role: usize, code: CodeKey, index: usize) -> Option<&Line> {
        self.roles.get(role)?.codes.get(&code)?.get(index)
    }
}
