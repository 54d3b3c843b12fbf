//! CEL expressions, checked when they are read and bounded when they run.
//!
//! An expression is parsed into a tree of limited size. Every name in it must exist, so that a typo is found before a
//! node is short of memory. Every turn of a loop takes from a budget, so that neither a clumsy expression nor a huge
//! answer can keep a thread busy.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use cel::{Context, Env, ExecutionError, Value, common::ast::IdedExpr, parser::PrattParser};

use crate::expression::{
    cost::{TURN, count_turns},
    visit::children,
};
use names::{check, selected};

mod cost;
mod names;
pub mod variables;
mod visit;

/// Longest expression, in bytes.
const MAX_BYTES: usize = 4096;
/// Most nodes of the tree, with its macros expanded.
const MAX_NODES: usize = 2000;
/// Largest depth to which brackets and prefixes may be nested, which bounds the parser's stack.
const MAX_DEPTH: u16 = 48;
/// Largest depth of the tree, which bounds the interpreter's stack.
const MAX_TREE_DEPTH: usize = 100;
/// Most turns of all loops of one evaluation together.
const MAX_TURNS: u32 = 100_000;

/// A variable that an expression may use, and its fields.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    /// The variable.
    pub variable: &'a str,
    /// Fields of the variable; `None` when they are not known beforehand.
    pub fields: Option<&'a [&'a str]>,
}

/// Why an expression cannot be used, with the place in it where that is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExpressionError(String);

/// Why an evaluation has no result. No result never counts as true.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EvaluationError(String);

impl EvaluationError {
    /// An error with this text, cut if it is long.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(shorten(text.as_ref()))
    }
}

/// A checked expression.
#[derive(Clone)]
pub struct Expression {
    text: String,
    tree: Arc<IdedExpr>,
}

impl Expression {
    /// Parses an expression that may use these names and nothing else.
    ///
    /// # Errors
    /// The text is too long, is not CEL, or has an unknown variable, field or function.
    pub fn parse(text: &str, names: &[Name<'_>]) -> Result<Self, ExpressionError> {
        if text.len() > MAX_BYTES {
            let length = text.len();
            return Err(ExpressionError(format!(
                "is {length} bytes long, more than {MAX_BYTES}"
            )));
        }
        if let Some(depth) = nesting(text).filter(|d| *d > MAX_DEPTH) {
            return Err(ExpressionError(format!(
                "is nested {depth} deep, more than {MAX_DEPTH}"
            )));
        }
        let parsed = PrattParser::new()
            .max_recursion_depth(MAX_DEPTH)
            .max_expression_node_count(MAX_NODES)
            .enable_optional_syntax(true)
            .parse(text);
        let mut tree = parsed.map_err(|errors| {
            let first = errors.errors.first();
            ExpressionError(first.map_or_else(
                || "is no CEL expression".to_owned(),
                |e| format!("line {}, column {}: {}", e.pos.0, e.pos.1, one_line(&e.msg)),
            ))
        })?;
        if depth(&tree) > MAX_TREE_DEPTH {
            return Err(ExpressionError(format!(
                "is a chain of more than {MAX_TREE_DEPTH} links"
            )));
        }
        check(&tree, names, &mut Vec::new())?;
        count_turns(&mut tree);
        Ok(Self {
            text: text.to_owned(),
            tree: Arc::new(tree),
        })
    }

    /// The expression as its author wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The fields that are selected from a variable anywhere in the expression.
    pub fn selected(&self, variable: &str) -> Vec<&str> {
        let mut found = Vec::new();
        selected(&self.tree, variable, &mut found);
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The value of the expression with these variables.
    ///
    /// # Errors
    /// A field is absent, types do not match, or loops take too long.
    pub fn evaluate(&self, variables: &[(&str, Value)]) -> Result<Value, EvaluationError> {
        let mut context = Context::with_env(environment());
        for (name, value) in variables {
            context.add_variable_from_value(*name, value.clone());
        }
        let turns = AtomicU32::new(0);
        let turn = move || -> Result<bool, ExecutionError> {
            if turns.fetch_add(1, Ordering::Relaxed) < MAX_TURNS {
                Ok(true)
            } else {
                let reason = format!("its loops make more than {MAX_TURNS} turns");
                Err(ExecutionError::InternalError(reason))
            }
        };
        let failed = |e: &dyn std::fmt::Display| EvaluationError(shorten(&e.to_string()));
        context.add_function(TURN, turn).map_err(|e| failed(&e))?;
        context.resolve(&self.tree).map_err(|e| match e {
            ExecutionError::InternalError(reason) => failed(&reason),
            other => failed(&other),
        })
    }

    /// The value of an expression that is true or false.
    ///
    /// # Errors
    /// As [`Expression::evaluate`]; also a value of another type.
    pub fn is_true(&self, variables: &[(&str, Value)]) -> Result<bool, EvaluationError> {
        match self.evaluate(variables)? {
            Value::Bool(answer) => Ok(answer),
            _ => Err(EvaluationError("is neither true nor false".to_owned())),
        }
    }

    /// The value of an expression that is a text.
    ///
    /// # Errors
    /// As [`Expression::evaluate`]; also a value of another type.
    pub fn to_text(&self, variables: &[(&str, Value)]) -> Result<String, EvaluationError> {
        match self.evaluate(variables)? {
            Value::String(text) => Ok(text.as_ref().clone()),
            _ => Err(EvaluationError("is not a text".to_owned())),
        }
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Expression({:?})", self.text)
    }
}

/// CEL's standard library. It is large, so all expressions share one.
fn environment() -> Arc<Env> {
    static STANDARD: std::sync::OnceLock<Arc<Env>> = std::sync::OnceLock::new();
    Arc::clone(STANDARD.get_or_init(|| Arc::new(Env::stdlib())))
}

/// The deepest nesting of brackets and prefixes, also of those inside string literals; `None` without any.
fn nesting(text: &str) -> Option<u16> {
    let (mut open, mut deepest, mut prefixes) = (0_u16, 0, 0_u16);
    for c in text.chars() {
        match c {
            '(' | '[' | '{' => open = open.saturating_add(1),
            ')' | ']' | '}' => open = open.saturating_sub(1),
            '!' | '-' => prefixes = prefixes.saturating_add(1),
            c if c.is_whitespace() => {}
            _ => prefixes = 0,
        }
        deepest = deepest.max(open.saturating_add(prefixes));
    }
    (deepest > 0).then_some(deepest)
}

fn depth(node: &IdedExpr) -> usize {
    1 + children(node).map(depth).max().unwrap_or(0)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Cuts an error message, which may quote a whole answer.
fn shorten(text: &str) -> String {
    const LONGEST: usize = 160;
    let line = one_line(text);
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests;
