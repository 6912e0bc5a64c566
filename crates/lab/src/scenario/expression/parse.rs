//! Words into an expression, by precedence climbing: `or`, `and`, `not`, comparisons, `+ -`, `* / %`, `-x`, `x[1]`.

use super::{
    Expression, Function, Operator, Value,
    lex::{Word, words},
};
use crate::scenario::complain::{Wrong, quoted};

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
