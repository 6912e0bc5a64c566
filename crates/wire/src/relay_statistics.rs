//! What a relay tells a directory of ours of its last days: the lines of an extra-info document ([`crate::tor::extra_info`]) below who says so and when,
//! and above a signature. Grammar only: `hoplite_directory` signs and checks it.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{
    directory::{Key, Malformed, Signature},
    tor::extra_info::Statistics,
};

/// Bytes of one.
pub const RELAY_STATISTICS: usize = 4096;

const FIRST: &str = "hoplite-statistics 1\nidentity ";
const PUBLISHED: &str = "published ";
const CERTIFICATE: &str = "certificate ";
const SIGNATURE: &str = "signature ";

/// What one relay tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayStatistics {
    /// Who: the key that signs.
    pub identity: Key,
    /// When, in seconds since 1970; a later one replaces it.
    pub published: u64,
    /// What.
    pub statistics: Statistics,
}

/// One that was read, whose signature has not been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed<'a> {
    /// What it tells.
    pub told: RelayStatistics,
    /// What the signature is over.
    pub signed: &'a str,
    /// Of the key that has signed, by the identity; without one the identity itself has.
    pub certificate: Option<Vec<u8>>,
    /// Over [`Self::signed`].
    pub signature: Signature,
}

impl RelayStatistics {
    /// What is signed.
    pub fn text(&self) -> String {
        let (identity, published) = (&self.identity, self.published);
        let mut text = format!("{FIRST}{identity}\n{PUBLISHED}{published}\n");
        self.statistics.write(&mut text);
        text
    }

    /// All of it; `certificate` is of the key that has signed, where that is not the identity itself.
    pub fn with(&self, certificate: Option<&[u8]>, signature: &Signature) -> String {
        let mut text = self.text();
        if let Some(certificate) = certificate {
            let certificate = URL_SAFE_NO_PAD.encode(certificate);
            text.push_str(&format!("{CERTIFICATE}{certificate}\n"));
        }
        text.push_str(&format!("{SIGNATURE}{signature}\n"));
        text
    }

    /// Reads one, and nothing but it.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &str) -> Result<Signed<'_>, Malformed> {
        let wrong = |line, what| Malformed { line, what };
        let fits = text.len() <= RELAY_STATISTICS && text.is_ascii();
        let text = text.strip_suffix('\n').filter(|_| fits);
        let (before, signature) = text
            .and_then(|text| text.rsplit_once('\n'))
            .ok_or_else(|| wrong(1, "too long, cut, or not ASCII"))?;
        let signature = signature.strip_prefix(SIGNATURE);
        let signature = signature.and_then(|signature| signature.parse().ok());
        let signature = signature
            .ok_or_else(|| wrong(before.lines().count().saturating_add(1), "signature"))?;
        let signed = text
            .and_then(|text| text.get(..=before.len()))
            .unwrap_or_default();
        let (signed, certificate) = match signed.rsplit_once(&format!("\n{CERTIFICATE}")) {
            None => (signed, None),
            Some((before, certificate)) => {
                let certificate = URL_SAFE_NO_PAD.decode(certificate.trim_end_matches('\n'));
                let number = before.lines().count().saturating_add(1);
                let certificate = certificate.map_err(|_| wrong(number, "certificate"))?;
                let signed = signed.get(..=before.len()).unwrap_or_default();
                (signed, Some(certificate))
            }
        };
        let rest = signed
            .strip_prefix(FIRST)
            .ok_or_else(|| wrong(1, "no statistics of version 1"))?;
        let (identity, rest) = rest.split_once('\n').ok_or_else(|| wrong(2, "identity"))?;
        let (published, lines) = rest.split_once('\n').ok_or_else(|| wrong(3, "published"))?;
        let published = published.strip_prefix(PUBLISHED);
        let published = published.and_then(|seconds| seconds.parse().ok());
        let statistics =
            Statistics::parse(lines).map_err(|Malformed { line, what }| Malformed {
                // It counts from the line that it has read.
                line: line.saturating_add(2),
                what,
            })?;
        Ok(Signed {
            told: Self {
                identity: identity.parse().map_err(|_| wrong(2, "identity"))?,
                published: published.ok_or_else(|| wrong(3, "published"))?,
                statistics,
            },
            signed,
            certificate,
            signature,
        })
    }

    /// Each one of a text of many.
    pub fn parse_all(text: &str) -> impl Iterator<Item = Result<Signed<'_>, Malformed>> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let signature = rest.find(&format!("\n{SIGNATURE}"))?;
            let behind = rest.get(signature.saturating_add(1)..)?.find('\n')?;
            let end = signature.saturating_add(behind).saturating_add(2);
            let (one, others) = rest.split_at_checked(end)?;
            rest = others;
            Some(Self::parse(one))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tor::extra_info::Interval;

    fn told(byte: u8, published: u64, circuits: Option<u64>) -> RelayStatistics {
        let interval = Interval {
            end: 1_795_737_600,
            length: 86_400,
        };
        RelayStatistics {
            identity: Key([byte; 32]),
            published,
            statistics: Statistics {
                circuits: circuits.map(|count| (interval, count)),
                ..Statistics::default()
            },
        }
    }

    #[test]
    fn of_many_a_broken_one_takes_no_other_with_it() {
        let texts = [1, 2, 3].map(|byte| told(byte, 7, Some(8)).with(None, &Signature([9; 64])));
        let text = texts.concat().replacen("published", "publushed", 1);
        let read = RelayStatistics::parse_all(&text)
            .map(|read| read.map(|read| read.told.identity.0[0]).ok());
        assert_eq!(read.collect::<Vec<_>>(), [None, Some(2), Some(3)]);
        assert_eq!(RelayStatistics::parse_all("").count(), 0);
    }

    #[test]
    fn what_is_no_statistics_is_refused_by_its_line() {
        let line = |text: &str| RelayStatistics::parse(text).expect_err("refused").line;
        let text = told(1, 7, Some(8)).with(None, &Signature([9; 64]));
        assert_eq!(line(&text.replace("statistics 1", "statistics 2")), 1);
        assert_eq!(line(&text.replace("ed25519:", "ed25518:")), 2);
        assert_eq!(line(&text.replace("published 7", "published x")), 3);
        assert_eq!(line(&text.replace("(86400 s)", "(0 s)")), 4);
        assert_eq!(line(&text.replace("signature ", "signatur ")), 5);
        assert_eq!(line(text.trim_end()), 1);
    }

    proptest! {
        #[test]
        fn what_is_told_is_read_again(byte: u8, published: u64, circuits: Option<u64>, signature: [u8; 32], certificate: Option<[u8; 9]>) {
            let told = told(byte, published, circuits);
            let signature = Signature([signature, signature].concat().try_into().expect("64 bytes"));
            let certificate = certificate.map(Vec::from);
            let text = told.with(certificate.as_deref(), &signature);
            let read = RelayStatistics::parse(&text).expect("read");
            prop_assert_eq!(read.signed, told.text());
            prop_assert_eq!(read, Signed { told: told.clone(), signed: &told.text(), certificate, signature });
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "(hoplite-statistics 1\n)?([a-z-]{1,16}( [ -~]{0,30})?\n){0,9}(signature [A-Za-z]{0,90}\n)?") {
            RelayStatistics::parse_all(&text).for_each(drop);
            drop(RelayStatistics::parse(&text));
        }
    }
}
