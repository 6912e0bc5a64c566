//! The words of an expression. Used by `parse` only.

use crate::scenario::complain::{Wrong, quoted};

/// More words than this are refused.
const MOST: usize = 256;

/// A word.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Word {
    /// A number.
    Number(f64),
    /// A text in quotes.
    Text(String),
    /// A name, with dots in it.
    Name(String),
    /// An operator, bracket or comma.
    Sign(&'static str),
}

/// Longer ones first.
const SIGNS: [&str; 16] = [
    "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "(", ")", "[", "]", ",",
];

/// Takes an expression apart.
pub(super) fn words(text: &str) -> Result<Vec<Word>, Wrong> {
    let (mut rest, mut words) = (text.trim_start(), Vec::new());
    while let Some(first) = rest.chars().next() {
        if words.len() == MOST {
            return Err(Wrong::new(
                "the expression is too long",
                format!("at most {MOST} words"),
            ));
        }
        let (word, after) = match first {
            '0'..='9' => number(rest)?,
            '"' | '\'' => literal(rest, first)?,
            'a'..='z' | 'A'..='Z' | '_' => name(rest),
            _ => sign(rest)?,
        };
        words.push(word);
        rest = after.trim_start();
    }
    Ok(words)
}

fn number(text: &str) -> Result<(Word, &str), Wrong> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '_');
    let (digits, rest) = text.split_at(end.unwrap_or(text.len()));
    let plain = digits.chars().all(|c| c.is_ascii_digit() || c == '.');
    match digits.parse() {
        Ok(number) if plain => Ok((Word::Number(number), rest)),
        _ => Err(Wrong::new(
            format!("{} is not a number", quoted(digits)),
            "digits with at most one point; units stand outside the braces, as in \"{25 - hops}ms\"",
        )),
    }
}

fn literal(text: &str, quote: char) -> Result<(Word, &str), Wrong> {
    let inner = text.get(1..).unwrap_or_default();
    let Some((content, rest)) = inner.split_once(quote) else {
        return Err(Wrong::new(
            "a text has no end",
            format!("close it with {quote}"),
        ));
    };
    Ok((Word::Text(content.to_owned()), rest))
}

fn name(text: &str) -> (Word, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.');
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    (Word::Name(name.to_owned()), rest)
}

fn sign(text: &str) -> Result<(Word, &str), Wrong> {
    let found = SIGNS
        .iter()
        .find_map(|sign| Some((*sign, text.strip_prefix(sign)?)));
    let unknown = || {
        let first: String = text.chars().take(1).collect();
        let what = format!("{} is not part of an expression", quoted(&first));
        Wrong::new(
            what,
            "+ - * / % == != < <= > >= and or not ( ) [ ] , numbers, names, texts in quotes",
        )
    };
    found
        .map(|(sign, rest)| (Word::Sign(sign), rest))
        .ok_or_else(unknown)
}
