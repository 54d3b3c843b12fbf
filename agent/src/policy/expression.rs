//! CEL expressions, checked when they are read and bounded when they run.
//!
//! An expression is parsed into a tree of limited size. Whatever it names must exist, so that a slip of the pen is
//! found before a node is short of memory. Every turn of a loop takes from a budget, so that neither a clumsy
//! expression nor a huge answer can keep a thread busy.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use cel::{
    Context, Env, ExecutionError, Value,
    common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators},
    parser::PrattParser,
};

use super::walk::children;

/// Longest expression, in bytes.
const MAX_BYTES: usize = 4096;
/// Nodes of the tree, macros unfolded.
const MAX_NODES: usize = 2000;
/// How deep brackets and prefixes may be nested: the parser's stack.
const MAX_DEPTH: u16 = 48;
/// How deep the tree may be: the interpreter's stack.
const MAX_TREE_DEPTH: usize = 100;
/// Turns that all loops of one evaluation may make together.
const MAX_TURNS: u32 = 100_000;
/// Called once a turn; the sign keeps it out of reach for whoever writes expressions.
const TURN: &str = "@turn";

/// Functions that expressions may call: CEL's standard library without time zones and regular expressions, whose cost
/// nobody bounds.
const FUNCTIONS: [&str; 22] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "string",
    "int",
    "uint",
    "double",
    "bool",
    "bytes",
    "dyn",
    "type",
    "has",
    "all",
    "exists",
    "exists_one",
    "map",
    "filter",
    "optional.of",
    "optional.none",
    "orValue",
    "hasValue",
];

/// A name that an expression may use, and what may be selected from it.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    /// The variable.
    pub variable: &'a str,
    /// Its fields; `None` when they are not known beforehand.
    pub fields: Option<&'a [&'a str]>,
}

/// Why an expression cannot be used, with the place in it where that is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExpressionError(String);

/// Why an evaluation has no result. It never means yes.
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
    /// Too long, not CEL, an unknown variable, field or function.
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

    /// As it was written.
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
    /// A field that is not there, types that do not match, a loop that takes too long.
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

    /// The same for an expression that answers yes or no.
    ///
    /// # Errors
    /// As [`Expression::evaluate`], and a value that is neither.
    pub fn is_true(&self, variables: &[(&str, Value)]) -> Result<bool, EvaluationError> {
        match self.evaluate(variables)? {
            Value::Bool(answer) => Ok(answer),
            _ => Err(EvaluationError("is neither true nor false".to_owned())),
        }
    }

    /// The same for an expression that gives a text.
    ///
    /// # Errors
    /// As [`Expression::evaluate`], and a value that is none.
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

/// Made once: it holds the whole standard library.
fn environment() -> Arc<Env> {
    static STANDARD: std::sync::OnceLock<Arc<Env>> = std::sync::OnceLock::new();
    Arc::clone(STANDARD.get_or_init(|| Arc::new(Env::stdlib())))
}

/// The deepest nesting of brackets and prefixes, those inside texts counted too; `None` where there is none.
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

/// Everything that is named must exist; `bound` are the variables of the loops around.
fn check(
    node: &IdedExpr,
    names: &[Name<'_>],
    bound: &mut Vec<String>,
) -> Result<(), ExpressionError> {
    match &node.expr {
        Expr::Ident(name)
            if !bound.contains(name)
                && !is_type(name)
                && !names.iter().any(|n| n.variable == name) =>
        {
            let known: Vec<&str> = names.iter().map(|n| n.variable).collect();
            return Err(ExpressionError(format!(
                "unknown variable {name}; there is {}",
                known.join(", ")
            )));
        }
        Expr::Select(select) => check_field(&select.operand.expr, &select.field, names, bound)?,
        Expr::Call(call) => {
            // `optional.of(x)` is parsed as a method of a variable.
            let is_optional =
                matches!(&call.target, Some(t) if t.expr == Expr::Ident("optional".into()));
            let name = if is_optional {
                format!("optional.{}", call.func_name)
            } else {
                call.func_name.clone()
            };
            let is_operator = !name.starts_with(|c: char| c.is_alphabetic());
            if !is_operator && !FUNCTIONS.contains(&name.as_str()) {
                return Err(ExpressionError(format!("unknown function {name}")));
            }
            if let (
                operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT,
                [operand, index],
            ) = (name.as_str(), call.args.as_slice())
                && let Expr::Literal(LiteralValue::String(field)) = &index.expr
            {
                check_field(&operand.expr, field.inner(), names, bound)?;
            }
            if is_optional {
                return call.args.iter().try_for_each(|a| check(a, names, bound));
            }
        }
        Expr::Struct(s) => {
            return Err(ExpressionError(format!("unknown type {}", s.type_name)));
        }
        Expr::Comprehension(loops) => {
            check(&loops.iter_range, names, bound)?;
            check(&loops.accu_init, names, bound)?;
            let depth = bound.len();
            bound.extend([loops.iter_var.clone(), loops.accu_var.clone()]);
            bound.extend(loops.iter_var2.clone());
            for inside in [&loops.loop_cond, &loops.loop_step, &loops.result] {
                check(inside, names, bound)?;
            }
            bound.truncate(depth);
            return Ok(());
        }
        _ => {}
    }
    children(node).try_for_each(|child| check(child, names, bound))
}

fn check_field(
    operand: &Expr,
    field: &str,
    names: &[Name<'_>],
    bound: &[String],
) -> Result<(), ExpressionError> {
    let Expr::Ident(variable) = operand else {
        return Ok(());
    };
    let known = names.iter().find(|n| n.variable == variable);
    match known.and_then(|n| n.fields) {
        Some(fields) if !bound.contains(variable) && !fields.contains(&field) => {
            let fields = if fields.is_empty() {
                "nothing".to_owned()
            } else {
                fields.join(", ")
            };
            Err(ExpressionError(format!(
                "unknown field {variable}.{field}; there is {fields}"
            )))
        }
        _ => Ok(()),
    }
}

fn is_type(name: &str) -> bool {
    [
        "bool",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "list",
        "map",
        "null_type",
        "type",
    ]
    .contains(&name)
}

fn selected<'a>(node: &'a IdedExpr, variable: &str, found: &mut Vec<&'a str>) {
    let is_it = |operand: &IdedExpr| matches!(&operand.expr, Expr::Ident(name) if name == variable);
    match &node.expr {
        Expr::Select(select) if is_it(&select.operand) => found.push(&select.field),
        Expr::Call(call) => {
            if let [operand, index] = call.args.as_slice()
                && is_it(operand)
                && let Expr::Literal(LiteralValue::String(field)) = &index.expr
            {
                found.push(field.inner());
            }
        }
        _ => {}
    }
    for child in children(node) {
        selected(child, variable, found);
    }
}

/// Makes every loop of the tree take a turn from the budget each time round.
fn count_turns(node: &mut IdedExpr) {
    if let Expr::Comprehension(loops) = &mut node.expr {
        let appends = matches!(loops.loop_cond.expr, Expr::Literal(_));
        if appends {
            // `map` and `filter`: the interpreter knows them by a constant condition, and is fast only then. With a
            // guard (or an empty one) their shape stays what it knows.
            let step = std::mem::take(&mut loops.loop_step);
            loops.loop_step = guarded(step, &loops.accu_var);
        } else {
            let condition = std::mem::take(&mut loops.loop_cond);
            loops.loop_cond = after_turn(condition);
        }
    }
    super::walk::children_mut(node, &mut count_turns);
}

fn guarded(step: IdedExpr, accumulator: &str) -> IdedExpr {
    match step.expr {
        Expr::Call(CallExpr {
            func_name,
            mut args,
            ..
        }) if func_name == operators::CONDITIONAL && args.len() == 3 => {
            let condition = std::mem::take(&mut args[0]);
            args[0] = after_turn(condition);
            call(operators::CONDITIONAL, args)
        }
        other => {
            let step = IdedExpr {
                id: step.id,
                expr: other,
            };
            let unchanged = IdedExpr {
                id: 0,
                expr: Expr::Ident(accumulator.to_owned()),
            };
            call(
                operators::CONDITIONAL,
                vec![call(TURN, vec![]), step, unchanged],
            )
        }
    }
}

/// A condition, once a turn has been taken. Not `&&`: for that a failure beside a false is no failure, and a budget that
/// is used up must end the loops around too.
fn after_turn(condition: IdedExpr) -> IdedExpr {
    let no = IdedExpr {
        id: 0,
        expr: Expr::Literal(LiteralValue::Boolean(false.into())),
    };
    call(
        operators::CONDITIONAL,
        vec![call(TURN, vec![]), condition, no],
    )
}

fn call(function: &str, args: Vec<IdedExpr>) -> IdedExpr {
    IdedExpr {
        id: 0,
        expr: Expr::Call(CallExpr {
            func_name: function.to_owned(),
            target: None,
            args,
        }),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An error may quote a whole answer.
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
