//! From serde's words to a complaint with a remedy: which key, what was expected, what was probably meant.
//! Used by `config::value` only.

use super::locate::Document;
use crate::errors::Complaint;

/// What does not fit, where, and what to do.
pub(super) fn complaint(document: &Document, error: &toml::de::Error) -> Complaint {
    let span = error.span().unwrap_or(0..0);
    let key = document.key_at(&span);
    let key = (!key.is_empty()).then_some(key.as_str());
    let message = error.message();
    let offset = span.start;
    if let Some((found, known)) = unknown(message, "unknown field ") {
        return document.complain_at(offset, key, "there is no such key", &meant(&found, &known));
    }
    if let Some((found, known)) = unknown(message, "unknown variant ") {
        let why = format!("{found:?} is not a value of this key");
        return document.complain_at(offset, key, why, &meant(&found, &known));
    }
    if let Some(missing) = quoted(message)
        .first()
        .filter(|_| message.starts_with("missing field"))
    {
        return document.complain_at(
            offset,
            key,
            format!("the key \"{missing}\" is missing"),
            "add it",
        );
    }
    let why = if key.is_some_and(is_secret) {
        without_value(message)
    } else {
        plain(message)
    };
    document.complain_at(offset, key, why, "correct the value")
}

fn is_secret(key: &str) -> bool {
    key.ends_with("token")
}

/// A message never repeats a token.
fn without_value(message: &str) -> String {
    let expected = message
        .rsplit_once("expected ")
        .map_or("a text", |(_, expected)| expected);
    format!("expected {expected}")
}

/// `invalid type: integer `7`, expected a string` in the order of the other messages.
fn plain(message: &str) -> String {
    let message = message.replace('\n', ", ");
    let found = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "));
    match found.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, expected)) => format!(
            "expected {}, found {}",
            everyday(expected),
            found.replace('`', "")
        ),
        None => message,
    }
}

/// Type names in the words of a user.
fn everyday(expected: &str) -> &str {
    match expected {
        "usize" | "u64" | "u32" | "u16" | "u8" => "a whole number",
        "f64" => "a number",
        "a sequence" => "a list",
        other => other,
    }
}

/// What stands between the grave accents of serde's messages.
fn quoted(message: &str) -> Vec<String> {
    message
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn unknown(message: &str, start: &str) -> Option<(String, Vec<String>)> {
    let mut names = quoted(message.strip_prefix(start)?).into_iter();
    Some((names.next()?, names.collect()))
}

pub(super) fn meant(found: &str, known: &[String]) -> String {
    let near = known.iter().map(|name| (distance(found, name), name)).min();
    match near {
        Some((far, name)) if far <= 1 + name.chars().count() / 3 => {
            format!("did you mean \"{name}\"?")
        }
        Some(_) => format!("use one of {}", known.join(", ")),
        None => "remove it".into(),
    }
}

/// How many letters to change, add, drop or swap with their neighbour; of a long text only the beginning is looked at.
fn distance(found: &str, known: &str) -> usize {
    let beginning: String = found.chars().take(64).collect();
    strsim::osa_distance(&beginning, known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swapped_and_a_dropped_letter_each_count_once() {
        // A name of two letters forgives one mistake.
        let known = ["ip".to_owned()];
        for found in ["pi", "p", "iip", "up"] {
            assert_eq!(meant(found, &known), "did you mean \"ip\"?");
        }
        assert_eq!(meant("pie", &known), "use one of ip");
    }

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["name".to_owned(), "address".to_owned()];
        assert_eq!(meant("adress", &known), "did you mean \"address\"?");
        assert_eq!(meant("colour", &known), "use one of name, address");
    }
}
