//! The direct children of a node of an expression.

use cel::common::ast::{EntryExpr, Expr, IdedExpr};

/// The direct children.
pub(super) fn children(node: &IdedExpr) -> impl Iterator<Item = &IdedExpr> {
    let mut below: Vec<&IdedExpr> = Vec::new();
    match &node.expr {
        Expr::Call(call) => below.extend(call.target.as_deref().into_iter().chain(&call.args)),
        Expr::Comprehension(c) => below.extend([
            &c.iter_range,
            &c.accu_init,
            &c.loop_cond,
            &c.loop_step,
            &c.result,
        ]),
        Expr::List(list) => below.extend(&list.elements),
        Expr::Map(map) => below.extend(map.entries.iter().flat_map(|e| entry(&e.expr))),
        Expr::Struct(s) => below.extend(s.entries.iter().flat_map(|e| entry(&e.expr))),
        Expr::Select(select) => below.push(&select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
    below.into_iter()
}

fn entry(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// Calls `change` for each direct child.
pub(super) fn children_mut(node: &mut IdedExpr, change: &mut impl FnMut(&mut IdedExpr)) {
    match &mut node.expr {
        Expr::Call(call) => call
            .target
            .as_deref_mut()
            .into_iter()
            .chain(&mut call.args)
            .for_each(change),
        Expr::Comprehension(c) => [
            &mut c.iter_range,
            &mut c.accu_init,
            &mut c.loop_cond,
            &mut c.loop_step,
            &mut c.result,
        ]
        .into_iter()
        .for_each(change),
        Expr::List(list) => list.elements.iter_mut().for_each(change),
        Expr::Map(map) => map
            .entries
            .iter_mut()
            .for_each(|e| entry_mut(&mut e.expr, change)),
        Expr::Struct(s) => s
            .entries
            .iter_mut()
            .for_each(|e| entry_mut(&mut e.expr, change)),
        Expr::Select(select) => change(&mut select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}

fn entry_mut(entry: &mut EntryExpr, change: &mut impl FnMut(&mut IdedExpr)) {
    match entry {
        EntryExpr::StructField(field) => change(&mut field.value),
        EntryExpr::MapEntry(entry) => {
            change(&mut entry.key);
            change(&mut entry.value);
        }
    }
}
