//! Texts with `{…}` in them. Used for every text of a scenario and of a subject's file.
//! A text that is one `{…}` and nothing else comes to a value; otherwise values are pasted. `{{` and `}}` are braces.
//! A subject's texts also have holes that only the world fills, such as `{dir}` and `{ip:HOST}`: they stay as they are.

use super::{
    complain::{Wrong, quoted},
    expression::{Expression, Scope, Value, parse},
};

/// Deeper holes in holes are refused.
const DEEPEST: u32 = 3;
/// A longer result is refused: repeats of repeats would grow without bound.
const LONGEST: usize = 1 << 20;

/// Whose texts they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A scenario: expressions only.
    Scenario,
    /// A subject: holes too.
    Subject,
}

/// What the world fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// `{dir}`: the attempt's directory.
    Dir,
    /// `{shared}`: the campaign's directory.
    Shared,
    /// `{ip:HOST}`
    Ip,
    /// `{ip6:HOST}`
    Ip6,
    /// `{out:STEP}`
    Out,
    /// `{file:PATH}`
    File,
}

/// A parsed text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Expression(Expression),
    Hole(Hole, Template),
}

impl Template {
    /// Parses a text.
    pub(crate) fn parse(text: &str, owner: Owner) -> Result<Self, Wrong> {
        Self::nested(text, owner, 0)
    }

    fn nested(text: &str, owner: Owner, depth: u32) -> Result<Self, Wrong> {
        if depth > DEEPEST {
            return Err(Wrong::new(
                "braces are nested too deeply",
                format!("at most {DEEPEST} levels"),
            ));
        }
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            let (before, here) = rest.split_at(at);
            plain.push_str(before);
            if let Some(after) = here.strip_prefix("{{").or_else(|| here.strip_prefix("}}")) {
                plain.push_str(here.get(..1).unwrap_or_default());
                rest = after;
                continue;
            }
            let (inside, after) = braces(here)?;
            parts.extend((!plain.is_empty()).then(|| Part::Text(std::mem::take(&mut plain))));
            parts.push(part(inside, owner, depth)?);
            rest = after;
        }
        plain.push_str(rest);
        parts.extend((!plain.is_empty()).then_some(Part::Text(plain)));
        Ok(Self { parts })
    }

    /// Its value: of a lone expression, else a text.
    pub(crate) fn value(&self, scope: &Scope) -> Result<Value, Wrong> {
        if let [Part::Expression(expression)] = self.parts.as_slice() {
            return expression.value(scope);
        }
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Expression(expression) => text.push_str(&expression.value(scope)?.text()),
                Part::Hole(hole, inner) => {
                    text.push_str(&hole.written(&inner.value(scope)?.text()))
                }
            }
            if text.len() > LONGEST {
                return Err(Wrong::new("the text becomes too long", "at most 1 MiB"));
            }
        }
        Ok(Value::Text(text))
    }

    /// Every name in it.
    pub(crate) fn names<'t>(&'t self, found: &mut Vec<&'t str>) {
        for part in &self.parts {
            match part {
                Part::Text(_) => {}
                Part::Expression(expression) => expression.names(found),
                Part::Hole(_, inner) => inner.names(found),
            }
        }
    }

    /// Every hole in it and what it names, in a scope.
    pub(crate) fn holes(&self, scope: &Scope) -> Result<Vec<(Hole, String)>, Wrong> {
        let hole = |part: &Part| match part {
            Part::Hole(hole, inner) => Some(inner.value(scope).map(|value| (*hole, value.text()))),
            _ => None,
        };
        self.parts.iter().filter_map(hole).collect()
    }
}

impl Hole {
    fn written(self, inner: &str) -> String {
        match self {
            Self::Dir => "{dir}".into(),
            Self::Shared => "{shared}".into(),
            Self::Ip => format!("{{ip:{inner}}}"),
            Self::Ip6 => format!("{{ip6:{inner}}}"),
            Self::Out => format!("{{out:{inner}}}"),
            Self::File => format!("{{file:{inner}}}"),
        }
    }
}

/// What stands between a brace and its partner, and what comes after.
fn braces(text: &str) -> Result<(&str, &str), Wrong> {
    let (mut depth, mut quote) = (0_u32, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') if depth > 0 => quote = Some(c),
            (None, '{') => depth += 1,
            (None, '}') if depth == 0 => break,
            (None, '}') => depth -= 1,
            _ => {}
        }
        if depth == 0 && c == '}' {
            let inside = text.get(1..at).unwrap_or_default();
            return Ok((inside, text.get(at + 1..).unwrap_or_default()));
        }
    }
    Err(match text.starts_with('}') {
        true => Wrong::new("a } has no {", "}} for a brace"),
        false => Wrong::new("a { has no }", "{{ for a brace"),
    })
}

fn part(inside: &str, owner: Owner, depth: u32) -> Result<Part, Wrong> {
    match hole(inside) {
        None => Ok(Part::Expression(parse(inside)?)),
        Some(_) if owner == Owner::Scenario => Err(Wrong::new(
            format!("{} is only known in a subject's file", quoted(inside)),
            "matrix parameters, and i in repeats",
        )),
        Some((hole, inner)) => Ok(Part::Hole(hole, Template::nested(inner, owner, depth + 1)?)),
    }
}

/// A hole and what it names.
fn hole(inside: &str) -> Option<(Hole, &str)> {
    match inside {
        "dir" => return Some((Hole::Dir, "")),
        "shared" => return Some((Hole::Shared, "")),
        _ => {}
    }
    let (kind, name) = inside.split_once(':')?;
    let hole = match kind {
        "ip" => Hole::Ip,
        "ip6" => Hole::Ip6,
        "out" => Hole::Out,
        "file" => Hole::File,
        _ => return None,
    };
    Some((hole, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<Value, String> {
        let mut scope = Scope::default();
        scope.set("hops", Value::Number(3.0));
        scope.set("i", Value::Number(2.0));
        let value =
            Template::parse(text, Owner::Subject).and_then(|template| template.value(&scope));
        value.map_err(|wrong| format!("{}: {}", wrong.what, wrong.allowed))
    }

    fn text(source: &str) -> String {
        match value(source) {
            Ok(Value::Text(text)) => text,
            other => panic!("{source}: {other:?}"),
        }
    }

    #[test]
    fn a_lone_expression_keeps_its_kind() {
        assert_eq!(value("{hops > 0}"), Ok(Value::Flag(true)));
        assert_eq!(value("{hops}"), Ok(Value::Number(3.0)));
        assert_eq!(value("plain"), Ok(Value::Text("plain".into())));
        assert_eq!(value(""), Ok(Value::Text(String::new())));
    }

    #[test]
    fn values_are_pasted_into_text() {
        assert_eq!(text("relay{i}-{hops - i}"), "relay2-1");
        assert_eq!(text("{if(hops > 1, '}', \"{\")}!"), "}!");
    }

    #[test]
    fn doubled_braces_are_braces() {
        assert_eq!(text("{{ \"a\": {i} }}"), "{ \"a\": 2 }");
        assert_eq!(text("${{HOME}}"), "${HOME}");
    }

    #[test]
    fn holes_stay_for_the_world() {
        assert_eq!(
            text("{dir}/x {shared} {ip:relay{i}}:{i} {ip6:a} {out:pin{i}}"),
            "{dir}/x {shared} {ip:relay2}:2 {ip6:a} {out:pin2}"
        );
    }

    #[test]
    fn a_scenario_has_no_holes() {
        let wrong = Template::parse("{dir}/x", Owner::Scenario).expect_err("not there");
        assert_eq!(wrong.what, "\"dir\" is only known in a subject's file");
    }

    #[test]
    fn a_lone_brace_is_refused() {
        assert_eq!(value("a { b"), Err("a { has no }: {{ for a brace".into()));
        assert_eq!(value("a } b"), Err("a } has no {: }} for a brace".into()));
        assert_eq!(
            value("{}"),
            Err(
                "there is nothing between the braces: an expression, or {{ and }} for braces"
                    .into()
            )
        );
    }

    #[test]
    fn braces_without_end_are_refused() {
        assert!(value(&"{ip:".repeat(10_000)).is_err());
        assert!(value(&format!("{}{}", "{ip:".repeat(10_000), "}".repeat(10_000))).is_err());
    }
}
