//! The small language inside `{…}`: numbers, texts, true and false, names; `+ - * / %`, comparisons, `and or not`, brackets,
//! `x[1]`, `if(c, a, b)`, `min`, `max`, `len`. `template` finds it in texts; scenarios and subjects bring the names.
//! An expression has at most 256 words and 32 levels of brackets, so reading and computing it is bounded.

mod lex;
mod parse;

use std::collections::BTreeMap;

pub(crate) use parse::parse;

use super::complain::{Wrong, meant, quoted};

/// What an expression comes to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// true or false.
    Flag(bool),
    /// A list.
    List(Vec<Self>),
}

/// The names that an expression may use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    names: BTreeMap<String, Value>,
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
        self.names.insert(name.into(), value);
    }

    /// The same with one more number.
    pub(crate) fn with(&self, name: &str, number: u32) -> Self {
        let mut scope = self.clone();
        scope.set(name, Value::Number(f64::from(number)));
        scope
    }

    fn value(&self, name: &str) -> Result<Value, Wrong> {
        let unknown = || {
            let what = format!("{} is not defined", quoted(name));
            Wrong::new(what, meant(name, self.names.keys().map(String::as_str)))
        };
        self.names.get(name).cloned().ok_or_else(unknown)
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

    /// Octets of its texts.
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
    let found = (1_u32..).zip(items).find(|(i, _)| f64::from(*i) == place);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        let mut scope = Scope::default();
        scope.set("hops", Value::Number(3.0));
        scope.set("rate", Value::Text("10Mbit".into()));
        scope.set("profile.down", Value::Text("240kbit".into()));
        let names = ["a", "b"].map(|name| Value::Text(name.into()));
        scope.set("path", Value::List(names.to_vec()));
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
