//! Structured fields that are one boolean with parameters. What is no such item is as if the field were not there.
//! RFC 8941 §4.2 (parsing; "parsing MUST fail" is `None` here).
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

/// A parameter's value, as far as somebody asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bare<'a> {
    /// A string, still with its backslashes.
    String(&'a [u8]),
    /// A byte sequence, still in base64.
    Binary(&'a [u8]),
    Boolean(bool),
    /// A number or a token.
    Other,
}

/// Reads the octets of a field's value.
struct Reader<'a>(&'a [u8]);

/// The boolean; `parameter` is told of each parameter in order: "if there are duplicates, the last one is used".
pub(super) fn boolean<'a>(
    value: &'a [u8],
    mut parameter: impl FnMut(&'a [u8], Bare<'a>),
) -> Option<bool> {
    let mut reader = Reader(value);
    reader.skip_spaces();
    let Bare::Boolean(item) = reader.bare()? else {
        return None;
    };
    while reader.take(b';') {
        reader.skip_spaces();
        let key = reader.key()?;
        let value = match reader.take(b'=') {
            true => reader.bare()?,
            false => Bare::Boolean(true),
        };
        parameter(key, value);
    }
    reader.skip_spaces();
    reader.0.is_empty().then_some(item)
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn take(&mut self, octet: u8) -> bool {
        match self.0.split_first() {
            Some((first, rest)) if *first == octet => {
                self.0 = rest;
                true
            }
            _ => false,
        }
    }

    fn skip_spaces(&mut self) {
        while self.take(b' ') {}
    }

    /// The octets up to the first that is not `fine`.
    fn run(&mut self, fine: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.0.iter().position(|octet| !fine(*octet));
        let (run, rest) = self
            .0
            .split_at_checked(end.unwrap_or(self.0.len()))
            .unwrap_or_default();
        self.0 = rest;
        run
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        let fine = |octet: u8| {
            octet.is_ascii_lowercase() || octet.is_ascii_digit() || b"_-.*".contains(&octet)
        };
        let starts = self
            .peek()
            .is_some_and(|first| first.is_ascii_lowercase() || first == b'*');
        starts.then(|| self.run(fine))
    }

    fn bare(&mut self) -> Option<Bare<'a>> {
        match self.peek()? {
            b'?' => self.flag(),
            b'"' => self.string(),
            b':' => self.binary(),
            b'-' | b'0'..=b'9' => self.number(),
            b'*' | b'A'..=b'Z' | b'a'..=b'z' => {
                self.run(|octet| is_token(octet) || b":/".contains(&octet));
                Some(Bare::Other)
            }
            _ => None,
        }
    }

    fn flag(&mut self) -> Option<Bare<'a>> {
        self.take(b'?');
        match (self.take(b'1'), self.peek()) {
            (true, _) => Some(Bare::Boolean(true)),
            (false, Some(b'0')) => {
                self.take(b'0');
                Some(Bare::Boolean(false))
            }
            _ => None,
        }
    }

    fn string(&mut self) -> Option<Bare<'a>> {
        self.take(b'"');
        let start = self.0;
        while self.peek()? != b'"' {
            let escaped = self.take(b'\\');
            let (octet, rest) = self.0.split_first()?;
            let fine = match escaped {
                true => matches!(octet, b'"' | b'\\'),
                false => matches!(octet, b' '..=b'~'),
            };
            self.0 = rest;
            if !fine {
                return None;
            }
        }
        let length = start.len().checked_sub(self.0.len())?;
        self.take(b'"');
        start.get(..length).map(Bare::String)
    }

    fn binary(&mut self) -> Option<Bare<'a>> {
        self.take(b':');
        let text = self.run(|octet| octet.is_ascii_alphanumeric() || b"+/=".contains(&octet));
        self.take(b':').then_some(Bare::Binary(text))
    }

    /// At most 15 digits, or 12 with up to 3 behind the point.
    fn number(&mut self) -> Option<Bare<'a>> {
        self.take(b'-');
        let whole = self.run(|octet| octet.is_ascii_digit()).len();
        let fine = match self.take(b'.') {
            true => {
                let part = self.run(|octet| octet.is_ascii_digit()).len();
                matches!((whole, part), (1..=12, 1..=3))
            }
            false => matches!(whole, 1..=15),
        };
        fine.then_some(Bare::Other)
    }
}

/// `tchar` of RFC 9110 §5.6.2.
fn is_token(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&octet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Read<'a> = Option<(bool, Vec<(&'a [u8], Bare<'a>)>)>;

    fn read(value: &[u8]) -> Read<'_> {
        let mut parameters = Vec::new();
        let item = boolean(value, |key, value| parameters.push((key, value)))?;
        Some((item, parameters))
    }

    #[test]
    fn items_with_parameters_of_every_type_are_read() {
        let value = br#"  ?1; a="x\"y"; b=:AAA=: ;c;d=?0;*e=tok/en:x;f=-12.5;g=7  "#;
        assert_eq!(read(value), None, "a space stands in front of no semicolon");
        let value = br#"  ?1; a="x\"y"; b=:AAA=:;c;d=?0;*e=tok/en:x;f=-12.5;g=7  "#;
        let (item, parameters) = read(value).expect("an item");
        let wanted: [(&[u8], Bare<'_>); 7] = [
            (b"a", Bare::String(br#"x\"y"#)),
            (b"b", Bare::Binary(b"AAA=")),
            (b"c", Bare::Boolean(true)),
            (b"d", Bare::Boolean(false)),
            (b"*e", Bare::Other),
            (b"f", Bare::Other),
            (b"g", Bare::Other),
        ];
        assert!(item);
        assert_eq!(parameters, wanted);
    }

    #[test]
    fn what_is_no_boolean_item_is_refused() {
        let cases: [&[u8]; 22] = [
            b"",
            b" ",
            b"1",
            b"?",
            b"?2",
            b"?10",
            b"?1,",
            b"?1, ?1",
            b"?1;",
            b"?1;A",
            b"?1;a=",
            b"?1;a=\"",
            b"?1;a=\"\\x\"",
            b"?1;a=\"\x7f\"",
            b"?1;a=:AA",
            b"?1;a=:-:",
            b"\t?1",
            b"?1;a=1.",
            b"?1;a=1.2345",
            b"?1;a=1234567890123456",
            b"?1;a=@",
            b"true",
        ];
        for value in cases {
            assert_eq!(read(value), None, "{}", value.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn any_octets_are_read_without_a_panic(value: Vec<u8>) {
            drop(read(&value));
        }
    }
}
