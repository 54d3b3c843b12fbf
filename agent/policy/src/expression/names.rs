//! Checks that all names in an expression exist.

use cel::common::ast::{Expr, IdedExpr, LiteralValue, operators};

use super::{ExpressionError, Name};
use crate::expression::visit::children;

/// Functions that expressions may call: CEL's standard library without time zones, and without regular expressions,
/// whose cost has no bound.
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

/// Checks every name below `node`; `bound` are the variables of the loops around it.
pub(super) fn check(
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

/// The fields that are selected from a variable.
pub(super) fn selected<'a>(node: &'a IdedExpr, variable: &str, found: &mut Vec<&'a str>) {
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
