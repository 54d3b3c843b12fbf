//! Counts the turns of loops against the budget of the evaluation.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};

use crate::expression::visit::children_mut;

/// The function that each turn calls. No expression can name it, because of the `@`.
pub(super) const TURN: &str = "@turn";

/// Makes every loop of the tree take a turn from the budget each time round.
pub(super) fn count_turns(node: &mut IdedExpr) {
    if let Expr::Comprehension(loops) = &mut node.expr {
        let appends = matches!(loops.loop_cond.expr, Expr::Literal(_));
        if appends {
            // `map` and `filter`: the interpreter recognizes them by their constant condition, and appends in place
            // only then. So the step gets the guard, and the condition stays as it is.
            let step = std::mem::take(&mut loops.loop_step);
            loops.loop_step = guarded(step, &loops.accu_var);
        } else {
            let condition = std::mem::take(&mut loops.loop_cond);
            loops.loop_cond = after_turn(condition);
        }
    }
    children_mut(node, &mut count_turns);
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

/// Takes a turn, then evaluates the condition. Not with `&&`, which hides an error beside a `false`: a used-up budget
/// must end the outer loops too.
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
