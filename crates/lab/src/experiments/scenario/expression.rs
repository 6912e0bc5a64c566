//! The expressions inside `{…}` of scenarios and subjects: numbers, texts, true and false, names; `+ - * / %`, comparisons, `and or not`,
//! brackets, `x[1]`, `if(c, a, b)`, `min`, `max`, `len`. Its scope brings the names.
//! An expression has at most 256 words and 32 levels of brackets, so reading and computing it is bounded.
//!
//! This is not `minijinja`, because scenario files mean other things than its expressions do, and results were measured with them: lists count from 1;
//! numbers and texts are never compared or multiplied (there `"10Mbit" == 10` is false and `"a" * 2` repeats, here both are mistakes
//! with a place and a remedy); `if(c, a, b)` computes one side only; `{{` is a brace, which there opens an expression.

use std::{collections::BTreeMap, sync::Arc};

use super::document::{Wrong, meant, quoted};

/// What an expression comes to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// true or false.
    Flag(bool),
    /// A list; its copies share it.
    List(Arc<[Self]>),
}

/// The names that an expression may use. Copies share all but their counts: each instance of what is repeated has one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    names: Arc<BTreeMap<String, Value>>,
    /// Which instance it is; the last of a name counts, and goes before `names`.
    counts: Vec<(String, u32)>,
}

/// A parsed expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression {
    /// A value that stands there.
    Literal(Value),
    /// The value of a name.
    Name(String),
    /// `list[number]`, from 1.
    Index(Box<Self>, Box<Self>),
    /// `not x`
    Not(Box<Self>),
    /// `-x`
    Negate(Box<Self>),
    /// Two operands.
    Binary(Operator, Box<Self>, Box<Self>),
    /// `if(c, a, b)` and the other functions.
    Call(Function, Vec<Self>),
}

/// What stands between two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    /// `or`
    Or,
    /// `and`
    And,
    /// `==`
    Equal,
    /// `!=`
    Different,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    More,
    /// `>=`
    AtLeast,
    /// `+`
    Plus,
    /// `-`
    Minus,
    /// `*`
    Times,
    /// `/`
    Over,
    /// `%`
    Modulo,
}

/// What may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    /// The second or the third, by the first.
    If,
    /// The smaller number.
    Min,
    /// The larger number.
    Max,
    /// How many a list has.
    Len,
}

impl Scope {
    /// Sets a name.
    pub(crate) fn set(&mut self, name: impl Into<String>, value: Value) {
        Arc::make_mut(&mut self.names).insert(name.into(), value);
    }

    /// This scope with one more number.
    pub(crate) fn with(&self, name: &str, number: u32) -> Self {
        let mut scope = self.clone();
        scope.counts.push((name.to_owned(), number));
        scope
    }

    fn value(&self, name: &str) -> Result<Value, Wrong> {
        let unknown = || {
            let what = format!("{} is not defined", quoted(name));
            let counts = self.counts.iter().map(|(name, _)| name);
            let names = self.names.keys().chain(counts);
            Wrong::new(what, meant(name, names.map(String::as_str)))
        };
        let count = self.counts.iter().rev().find(|(known, _)| known == name);
        let count = count.map(|(_, number)| Value::Number(f64::from(*number)));
        count
            .or_else(|| self.names.get(name).cloned())
            .ok_or_else(unknown)
    }
}

impl Value {
    /// As it is pasted into a text: whole numbers without a point, lists joined by commas.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Number(number) => written(*number),
            Self::Text(text) => text.clone(),
            Self::Flag(flag) => flag.to_string(),
            Self::List(list) => {
                let texts: Vec<String> = list.iter().map(Self::text).collect();
                texts.join(",")
            }
        }
    }

    /// Bytes of its texts.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::List(list) => list.iter().map(Self::size).sum(),
            Self::Number(_) | Self::Flag(_) => 1,
        }
    }

    /// What it is, for a complaint.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::Flag(_) => "true or false",
            Self::List(_) => "a list",
        }
    }

    /// Kind and content, for a complaint.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Number(number) => written(*number),
            Self::Text(text) => quoted(text),
            Self::Flag(flag) => flag.to_string(),
            Self::List(_) => quoted(&format!("[{}]", self.text())),
        }
    }

    fn number(&self) -> Result<f64, Wrong> {
        match self {
            Self::Number(number) => Ok(*number),
            other => Err(Wrong::new(
                format!("{} is {}", other.shown(), other.kind()),
                "a number",
            )),
        }
    }

    fn flag(&self) -> Result<bool, Wrong> {
        match self {
            Self::Flag(flag) => Ok(*flag),
            other => Err(Wrong::new(
                format!("{} is {}", other.shown(), other.kind()),
                "true or false, such as a comparison",
            )),
        }
    }
}

/// Twelve digits: enough for every unit, and 0.1 + 0.2 is 0.3.
fn written(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 1e15 {
        return format!("{}", number + 0.0);
    }
    let rounded: f64 = format!("{number:.11e}").parse().unwrap_or(number);
    format!("{rounded}")
}

impl Expression {
    /// Its value.
    pub(crate) fn value(&self, scope: &Scope) -> Result<Value, Wrong> {
        match self {
            Self::Literal(value) => Ok(value.clone()),
            Self::Name(name) => scope.value(name),
            Self::Index(list, place) => index(&list.value(scope)?, place.value(scope)?.number()?),
            Self::Not(inner) => Ok(Value::Flag(!inner.value(scope)?.flag()?)),
            Self::Negate(inner) => finite(-inner.value(scope)?.number()?),
            Self::Binary(operator, left, right) => operator.apply(left, right, scope),
            Self::Call(function, arguments) => function.apply(arguments, scope),
        }
    }

    /// Every name in it.
    pub(crate) fn names<'e>(&'e self, found: &mut Vec<&'e str>) {
        match self {
            Self::Literal(_) => {}
            Self::Name(name) => found.push(name),
            Self::Not(inner) | Self::Negate(inner) => inner.names(found),
            Self::Index(left, right) | Self::Binary(_, left, right) => {
                left.names(found);
                right.names(found);
            }
            Self::Call(_, arguments) => arguments.iter().for_each(|inner| inner.names(found)),
        }
    }
}

impl Operator {
    fn apply(self, left: &Expression, right: &Expression, scope: &Scope) -> Result<Value, Wrong> {
        let left = left.value(scope)?;
        let right = || right.value(scope);
        match self {
            Self::Or => Ok(Value::Flag(left.flag()? || right()?.flag()?)),
            Self::And => Ok(Value::Flag(left.flag()? && right()?.flag()?)),
            Self::Equal => Ok(Value::Flag(equal(&left, &right()?)?)),
            Self::Different => Ok(Value::Flag(!equal(&left, &right()?)?)),
            _ => self.calculate(left.number()?, right()?.number()?),
        }
    }

    fn calculate(self, left: f64, right: f64) -> Result<Value, Wrong> {
        let zero = matches!(self, Self::Over | Self::Modulo) && right == 0.0;
        if zero {
            return Err(Wrong::new("a division by 0", "another number"));
        }
        match self {
            Self::Less => Ok(Value::Flag(left < right)),
            Self::AtMost => Ok(Value::Flag(left <= right)),
            Self::More => Ok(Value::Flag(left > right)),
            Self::AtLeast => Ok(Value::Flag(left >= right)),
            Self::Plus => finite(left + right),
            Self::Minus => finite(left - right),
            Self::Times => finite(left * right),
            Self::Over => finite(left / right),
            _ => finite(left % right),
        }
    }
}

impl Function {
    fn apply(self, arguments: &[Expression], scope: &Scope) -> Result<Value, Wrong> {
        let number = |i: usize| arguments[i].value(scope)?.number();
        match self {
            Self::If if arguments[0].value(scope)?.flag()? => arguments[1].value(scope),
            Self::If => arguments[2].value(scope),
            Self::Min => finite(number(0)?.min(number(1)?)),
            Self::Max => finite(number(0)?.max(number(1)?)),
            Self::Len => match arguments[0].value(scope)? {
                Value::List(list) => Ok(Value::Number(f64::from(
                    u32::try_from(list.len()).unwrap_or(u32::MAX),
                ))),
                other => Err(Wrong::new(
                    format!("{} is {}", other.shown(), other.kind()),
                    "a list",
                )),
            },
        }
    }

    /// How many arguments it takes: `parse` sees to it.
    pub(crate) fn arguments(self) -> usize {
        match self {
            Self::If => 3,
            Self::Min | Self::Max => 2,
            Self::Len => 1,
        }
    }
}

fn equal(left: &Value, right: &Value) -> Result<bool, Wrong> {
    if std::mem::discriminant(left) == std::mem::discriminant(right) {
        return Ok(left == right);
    }
    let what = format!("{} is compared with {}", left.kind(), right.kind());
    Err(Wrong::new(what, "two of a kind"))
}

fn index(list: &Value, place: f64) -> Result<Value, Wrong> {
    let Value::List(items) = list else {
        let what = format!("{} is {}", list.shown(), list.kind());
        return Err(Wrong::new(what, "a list before [ ]"));
    };
    let found = (1_u32..)
        .zip(&**items)
        .find(|(i, _)| f64::from(*i) == place);
    let outside = || {
        let what = format!("there is no item {} in the list", written(place));
        Wrong::new(what, format!("1 to {}", items.len()))
    };
    found.map(|(_, item)| item.clone()).ok_or_else(outside)
}

fn finite(number: f64) -> Result<Value, Wrong> {
    if number.is_finite() && number.abs() < 1e18 {
        return Ok(Value::Number(number));
    }
    Err(Wrong::new("the number is too large", "less than 10^18"))
}

// Lexing: the words of an expression.

/// More words than this are refused.
const MOST: usize = 256;

/// A word.
#[derive(Clone, Debug, PartialEq)]
enum Word {
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
fn words(text: &str) -> Result<Vec<Word>, Wrong> {
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

// Parsing: words into an expression, by precedence climbing: `or`, `and`, `not`, comparisons, `+ -`, `* / %`, `-x`, `x[1]`.

/// Deeper brackets are refused.
const DEEPEST: u32 = 32;

/// Parses an expression.
pub(crate) fn parse(text: &str) -> Result<Expression, Wrong> {
    let words = words(text)?;
    if words.is_empty() {
        return Err(Wrong::new(
            "there is nothing between the braces",
            "an expression, or {{ and }} for braces",
        ));
    }
    let mut parser = Parser {
        words,
        next: 0,
        depth: 0,
    };
    let expression = parser.operand(0)?;
    match parser.peek() {
        None => Ok(expression),
        Some(word) => Err(unexpected(word, "an operator or the end")),
    }
}

struct Parser {
    words: Vec<Word>,
    next: usize,
    depth: u32,
}

impl Parser {
    fn peek(&self) -> Option<&Word> {
        self.words.get(self.next)
    }

    fn take(&mut self) -> Option<Word> {
        let word = self.peek().cloned();
        self.next += 1;
        word
    }

    /// Takes a sign or key word if it comes next.
    fn skip(&mut self, what: &str) -> bool {
        let here = match self.peek() {
            Some(Word::Sign(sign)) => *sign == what,
            Some(Word::Name(name)) => name == what,
            _ => false,
        };
        self.next += usize::from(here);
        here
    }

    fn expect(&mut self, sign: &str) -> Result<(), Wrong> {
        if self.skip(sign) {
            return Ok(());
        }
        match self.peek() {
            Some(word) => Err(unexpected(word, sign)),
            None => Err(Wrong::new(
                "the expression ends too early",
                format!("{sign} comes next"),
            )),
        }
    }

    /// Everything that binds at least as tightly as `level`.
    fn operand(&mut self, level: u8) -> Result<Expression, Wrong> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(Wrong::new(
                "the expression is nested too deeply",
                format!("at most {DEEPEST} levels"),
            ));
        }
        let mut left = self.prefix()?;
        while let Some((operator, binds)) = self
            .peek()
            .and_then(operator)
            .filter(|(_, binds)| *binds >= level)
        {
            self.next += 1;
            let right = self.operand(binds + 1)?;
            left = Expression::Binary(operator, Box::new(left), Box::new(right));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn prefix(&mut self) -> Result<Expression, Wrong> {
        if self.skip("not") {
            return Ok(Expression::Not(Box::new(self.operand(COMPARISON)?)));
        }
        if self.skip("-") {
            return Ok(Expression::Negate(Box::new(self.operand(TIGHTEST)?)));
        }
        let mut found = self.primary()?;
        while self.skip("[") {
            let place = self.operand(0)?;
            self.expect("]")?;
            found = Expression::Index(Box::new(found), Box::new(place));
        }
        Ok(found)
    }

    fn primary(&mut self) -> Result<Expression, Wrong> {
        match self.take() {
            Some(Word::Number(number)) => Ok(Expression::Literal(Value::Number(number))),
            Some(Word::Text(text)) => Ok(Expression::Literal(Value::Text(text))),
            Some(Word::Name(name)) => self.named(name),
            Some(Word::Sign("(")) => {
                let inner = self.operand(0)?;
                self.expect(")")?;
                Ok(inner)
            }
            Some(word) => Err(unexpected(&word, "a number, a name, a text or (")),
            None => Err(Wrong::new(
                "the expression ends too early",
                "a number, a name, a text or ( comes next",
            )),
        }
    }

    fn named(&mut self, name: String) -> Result<Expression, Wrong> {
        match name.as_str() {
            "true" | "false" => Ok(Expression::Literal(Value::Flag(name == "true"))),
            "and" | "or" => Err(unexpected(
                &Word::Name(name),
                "a number, a name, a text or (",
            )),
            _ if self.skip("(") => self.call(&name),
            _ => Ok(Expression::Name(name)),
        }
    }

    fn call(&mut self, name: &str) -> Result<Expression, Wrong> {
        let function = match name {
            "if" => Function::If,
            "min" => Function::Min,
            "max" => Function::Max,
            "len" => Function::Len,
            _ => {
                return Err(Wrong::new(
                    format!("there is no function {}", quoted(name)),
                    "if, min, max, len",
                ));
            }
        };
        let mut arguments = vec![self.operand(0)?];
        while self.skip(",") {
            arguments.push(self.operand(0)?);
        }
        self.expect(")")?;
        let wants = function.arguments();
        if arguments.len() != wants {
            let what = format!("{name} is called with {}", arguments.len());
            return Err(Wrong::new(what, format!("it takes {wants}")));
        }
        Ok(Expression::Call(function, arguments))
    }
}

const COMPARISON: u8 = 3;
const TIGHTEST: u8 = 6;

/// An operator and how tightly it binds.
fn operator(word: &Word) -> Option<(Operator, u8)> {
    let text = match word {
        Word::Sign(sign) => sign,
        Word::Name(name) => name.as_str(),
        _ => return None,
    };
    Some(match text {
        "or" => (Operator::Or, 1),
        "and" => (Operator::And, 2),
        "==" => (Operator::Equal, COMPARISON),
        "!=" => (Operator::Different, COMPARISON),
        "<" => (Operator::Less, COMPARISON),
        "<=" => (Operator::AtMost, COMPARISON),
        ">" => (Operator::More, COMPARISON),
        ">=" => (Operator::AtLeast, COMPARISON),
        "+" => (Operator::Plus, 4),
        "-" => (Operator::Minus, 4),
        "*" => (Operator::Times, 5),
        "/" => (Operator::Over, 5),
        "%" => (Operator::Modulo, 5),
        _ => return None,
    })
}

fn unexpected(word: &Word, allowed: &str) -> Wrong {
    let shown = match word {
        Word::Number(number) => number.to_string(),
        Word::Text(text) => quoted(text),
        Word::Name(name) => quoted(name),
        Word::Sign(sign) => quoted(sign),
    };
    Wrong::new(format!("{shown} is not expected there"), allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        let mut scope = Scope::default();
        scope.set("hops", Value::Number(3.0));
        scope.set("rate", Value::Text("10Mbit".into()));
        scope.set("profile.down", Value::Text("240kbit".into()));
        let names = ["a", "b"].map(|name| Value::Text(name.into()));
        scope.set("path", Value::List(names.into()));
        scope
    }

    fn value(text: &str) -> Result<Value, String> {
        let value = parse(text).and_then(|expression| expression.value(&scope()));
        value.map_err(|wrong| format!("{}: {}", wrong.what, wrong.allowed))
    }

    fn text(source: &str) -> String {
        value(source).expect(source).text()
    }

    #[test]
    fn arithmetic_keeps_the_usual_order() {
        assert_eq!(text("1 + 2 * 3"), "7");
        assert_eq!(text("(1 + 2) * 3"), "9");
        assert_eq!(text("10 - 4 - 3"), "3");
        assert_eq!(text("25 - 5 * hops"), "10");
        assert_eq!(text("7 % 4 - -1"), "4");
        assert_eq!(text("0.1 + 0.2"), "0.3");
        assert_eq!(text("1 / 4"), "0.25");
    }

    #[test]
    fn conditions_compare_numbers_and_texts() {
        assert_eq!(
            value("hops > 0 and rate == \"10Mbit\""),
            Ok(Value::Flag(true))
        );
        assert_eq!(
            value("not (hops >= 4) and rate != '1Mbit'"),
            Ok(Value::Flag(true))
        );
        assert_eq!(value("hops < 3 or hops <= 2"), Ok(Value::Flag(false)));
    }

    #[test]
    fn the_other_side_is_not_computed_when_one_decides() {
        assert_eq!(value("hops == 3 or 1 / 0 == 1"), Ok(Value::Flag(true)));
        assert_eq!(text("if(hops == 3, 'three', path[9])"), "three");
    }

    #[test]
    fn lists_are_counted_from_one_and_pasted_with_commas() {
        assert_eq!(text("path[hops - 1]"), "b");
        assert_eq!(text("len(path)"), "2");
        assert_eq!(text("path"), "a,b");
        assert_eq!(
            value("path[3]"),
            Err("there is no item 3 in the list: 1 to 2".into())
        );
    }

    #[test]
    fn fields_are_names_with_a_dot() {
        assert_eq!(text("profile.down"), "240kbit");
        assert_eq!(text("max(hops, 7) - min(hops, 7)"), "4");
    }

    #[test]
    fn kinds_are_not_mixed_silently() {
        assert_eq!(
            value("rate * 2"),
            Err("\"10Mbit\" is a text: a number".into())
        );
        assert_eq!(
            value("rate == 10"),
            Err("a text is compared with a number: two of a kind".into())
        );
        assert_eq!(
            value("hop + 1"),
            Err("\"hop\" is not defined: did you mean \"hops\"?".into())
        );
        assert_eq!(
            value("not hops"),
            Err("3 is a number: true or false, such as a comparison".into())
        );
        assert_eq!(
            value("1 / (hops - 3)"),
            Err("a division by 0: another number".into())
        );
    }

    #[test]
    fn bottomless_expressions_are_refused() {
        for text in [
            "(".repeat(5000),
            "-".repeat(5000),
            "not ".repeat(5000),
            "1+".repeat(5000),
            "if(".repeat(5000),
            "a[".repeat(5000),
        ] {
            assert!(parse(&text).is_err());
        }
        assert!(value("999999999 * 999999999 * 999999999").is_err());
    }
}
