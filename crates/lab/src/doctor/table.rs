//! What was found, as a table for people: one line a thing, and what to do below what is missing.

use std::io::{self, Write};

use super::{Check, State};

/// Writes it.
pub(super) fn write(out: &mut impl Write, checks: &[Check]) -> io::Result<()> {
    let mut of = "";
    for check in checks {
        if check.of != of {
            let gap = if of.is_empty() { "" } else { "\n" };
            of = &check.of;
            let note = if optional(checks, of) {
                " (not needed here)"
            } else {
                ""
            };
            writeln!(out, "{gap}{of}{note}")?;
        }
        let state = word(check.state);
        writeln!(out, "  {state:<8} {:<20} {}", check.check, check.found)?;
        if !check.remedy.is_empty() {
            writeln!(out, "  {:<8} {:<20} -> {}", "", "", check.remedy)?;
        }
    }
    Ok(())
}

fn optional(checks: &[Check], of: &str) -> bool {
    of != "machine" && checks.iter().all(|check| check.of != of || !check.needed)
}

fn word(state: State) -> &'static str {
    match state {
        State::Ok => "ok",
        State::Poor => "poor",
        State::Missing => "missing",
    }
}
