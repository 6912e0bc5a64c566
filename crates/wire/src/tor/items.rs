//! The items of a document: a keyword line, with an object behind it in some. dir-spec "Document meta-format".

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::{OBJECT, TEXT};
use crate::directory::Malformed;

/// Tor writes digests and keys without padding, objects with it, and Curve25519 keys either way.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What is left of a text.
#[derive(Clone)]
pub(super) struct Items<'a> {
    text: &'a str,
    /// Where the next item begins.
    at: usize,
    line: usize,
}

/// One item.
pub(super) struct Item<'a> {
    pub(super) keyword: &'a str,
    pub(super) arguments: &'a str,
    /// The octets between BEGIN and END.
    pub(super) object: Option<Vec<u8>>,
    /// Where it begins, and where its keyword line has ended.
    pub(super) start: usize,
    pub(super) body: usize,
}

impl<'a> Items<'a> {
    /// Texts of more than [`TEXT`] octets are not looked at.
    pub(super) fn of(text: &'a str) -> Result<Self, Malformed> {
        let items = Self {
            text,
            at: 0,
            line: 1,
        };
        match text.len() <= TEXT {
            true => Ok(items),
            false => Err(items.wrong("too long")),
        }
    }

    pub(super) fn wrong(&self, what: &'static str) -> Malformed {
        Malformed {
            line: self.line,
            what,
        }
    }

    /// Where the next item begins.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// What stands from `start` to `end`.
    pub(super) fn until(&self, start: usize, end: usize) -> Result<&'a str, Malformed> {
        let slice = self.text.get(start..end);
        slice.ok_or_else(|| self.wrong("cut"))
    }

    /// The next item; `None` at the end. Lines that begin with `@` are notes of whoever kept the text.
    pub(super) fn next(&mut self) -> Result<Option<Item<'a>>, Malformed> {
        loop {
            let start = self.at;
            let Some(line) = self.line() else {
                return match self.at == self.text.len() {
                    true => Ok(None),
                    false => Err(self.wrong("cut in the middle of a line")),
                };
            };
            if line.starts_with('@') || line.is_empty() {
                continue;
            }
            let line = line.strip_prefix("opt ").unwrap_or(line);
            let (keyword, arguments) = line.split_once([' ', '\t']).unwrap_or((line, ""));
            let body = self.at;
            return Ok(Some(Item {
                keyword,
                arguments,
                object: self.object()?,
                start,
                body,
            }));
        }
    }

    fn line(&mut self) -> Option<&'a str> {
        let (line, _) = self.text.get(self.at..)?.split_once('\n')?;
        self.at = self.at.saturating_add(line.len()).saturating_add(1);
        self.line = self.line.saturating_add(1);
        Some(line)
    }

    fn object(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        if !rest.starts_with("-----BEGIN ") {
            return Ok(None);
        }
        self.line();
        let mut text = String::new();
        loop {
            let line = self.line().ok_or_else(|| self.wrong("object"))?;
            if line.starts_with("-----END ") {
                break;
            }
            text.push_str(line);
            if text.len() > OBJECT {
                return Err(self.wrong("object that is too long"));
            }
        }
        let octets = BASE64.decode(text);
        octets.map(Some).map_err(|_| self.wrong("object"))
    }
}

impl Item<'_> {
    /// Octets that must be there.
    pub(super) fn octets(self, items: &Items<'_>) -> Result<Vec<u8>, Malformed> {
        self.object.ok_or_else(|| items.wrong("no object"))
    }
}

pub(super) fn base64<const N: usize>(text: &str) -> Option<[u8; N]> {
    (text.len() <= N.saturating_mul(2)).then_some(())?;
    BASE64.decode(text).ok()?.try_into().ok()
}

pub(super) fn encode(octets: &[u8]) -> String {
    BASE64.encode(octets)
}

/// Hexadecimal digits.
pub(super) fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut octets = [0; N];
    let digits = text.as_bytes();
    (digits.len() == N.checked_mul(2)?).then_some(())?;
    for (octet, pair) in octets.iter_mut().zip(digits.chunks(2)) {
        let digit = |at: usize| (*pair.get(at)? as char).to_digit(16);
        let value = digit(0)?.checked_mul(16)?.checked_add(digit(1)?)?;
        *octet = u8::try_from(value).ok()?;
    }
    Some(octets)
}
