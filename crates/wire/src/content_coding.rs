//! How a directory's documents go over HTTP: as they are, or compressed. RFC 9110, §8.4.1 and §12.5.3; dir-spec "Document requests" and "HTTP headers".
//!
//! Each document is compressed once, when it comes, and given in parts that all share ([`Encoded`]). What is read is bounded ([`inflate`]): by what such a
//! document may have, and by how much larger than what came it may be, so that a few kilobytes never cost megabytes.

use std::{fmt, io::Write};

use bytes::Bytes;
use flate2::{Compression, Crc, Decompress, FlushDecompress, Status, write::ZlibEncoder};

/// How many times as long as what came a document may be: more than any text of a directory is. So has C tor it.
const RATIO: usize = 25;
/// Bytes that are not asked for that: of a few words, and of a document that repeats itself, as one of a test network does.
const FREE: usize = 1 << 16;
/// Bytes for which there is room at once.
const ROOM: usize = 1 << 15;
/// Header of gzip (RFC 1952, section 2.3) for a stream of no known time and system.
const GZIP: &[u8] = &[0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255];
/// Bytes of zlib before the deflated data and behind them (RFC 1950, section 2.2).
const ZLIB_HEAD: usize = 2;
const ZLIB_TAIL: usize = 4;

/// In which form an answer goes: those that directories know, and that are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As it is.
    Identity,
    /// The format of zlib (RFC 1950), which HTTP calls so.
    Deflate,
    /// RFC 1952.
    Gzip,
}

impl Encoding {
    /// What `Content-Encoding` says.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Deflate => "deflate",
            Self::Gzip => "gzip",
        }
    }

    /// The smallest form that a client takes: by `Accept-Encoding`, which "should override the presence or absence of the `.z`" (`compressed`).
    pub fn of(accepted: Option<&str>, compressed: bool) -> Self {
        let Some(accepted) = accepted else {
            return if compressed {
                Self::Deflate
            } else {
                Self::Identity
            };
        };
        let takes = |name: &str| accepted.split(',').any(|one| is_taken(one, name));
        if takes("deflate") {
            Self::Deflate
        } else if takes("gzip") {
            Self::Gzip
        } else {
            Self::Identity
        }
    }
}

/// `gzip;q=0.5`: weights count for nothing here but that 0 is never.
fn is_taken(one: &str, name: &str) -> bool {
    let (coding, weight) = one.split_once(';').unwrap_or((one, ""));
    let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
    let never =
        weight.starts_with('0') && !weight.bytes().any(|byte| (b'1'..=b'9').contains(&byte));
    coding.trim().eq_ignore_ascii_case(name) && !never
}

/// A document in all forms in which it is given. Clones share them.
#[derive(Clone)]
pub struct Encoded {
    text: Bytes,
    zlib: Bytes,
    crc: u32,
}

impl Encoded {
    /// Compresses it: of millions of bytes in a tenth of a second.
    pub fn of(text: String) -> Self {
        let mut crc = Crc::new();
        crc.update(text.as_bytes());
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        // Writing to memory does not fail.
        let zlib = encoder.write_all(text.as_bytes());
        let zlib = zlib.and_then(|()| encoder.finish()).unwrap_or_default();
        Self {
            crc: crc.sum(),
            text: text.into(),
            zlib: zlib.into(),
        }
    }

    /// As it is.
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// In this form, in parts that stand one behind the other. "Clients MUST accept compressed concatenated documents and concatenated compressed
    /// documents as equivalent."
    pub fn parts(&self, encoding: Encoding) -> [Bytes; 3] {
        let alone = |whole: &Bytes| [whole.clone(), Bytes::new(), Bytes::new()];
        match encoding {
            Encoding::Identity => alone(&self.text),
            Encoding::Deflate => alone(&self.zlib),
            Encoding::Gzip => {
                let end = self.zlib.len().saturating_sub(ZLIB_TAIL).max(ZLIB_HEAD);
                let length = u32::try_from(self.text.len()).unwrap_or(u32::MAX);
                let tail = [self.crc.to_le_bytes(), length.to_le_bytes()].concat();
                let data = self.zlib.slice(ZLIB_HEAD..end);
                [Bytes::from_static(GZIP), data, tail.into()]
            }
        }
    }
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded")
            .field("bytes", &self.text.len())
            .finish_non_exhaustive()
    }
}

/// Why what came compressed is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotInflated {
    /// It is no stream of zlib, or one is cut, or was changed on the way.
    #[error("what came is not compressed as it says")]
    Broken,
    /// It is longer than it may be.
    #[error("what came is too large when it is not compressed any more")]
    TooLarge,
}

/// What streams of zlib have in them, that stand one behind the other: at most `most` bytes, and no more than is worth what came. Nothing beyond that is
/// ever made of it.
///
/// # Errors
/// [`NotInflated`].
pub fn inflate(compressed: &[u8], most: usize) -> Result<Vec<u8>, NotInflated> {
    let worth = compressed.len().saturating_mul(RATIO).saturating_add(FREE);
    let (most, mut all, mut rest) = (most.min(worth), Vec::new(), compressed);
    while !rest.is_empty() {
        rest = inflate_one(rest, &mut all, most)?;
    }
    let is_any = !compressed.is_empty();
    is_any.then_some(all).ok_or(NotInflated::Broken)
}

/// What is behind the stream.
fn inflate_one<'a>(
    mut rest: &'a [u8],
    all: &mut Vec<u8>,
    most: usize,
) -> Result<&'a [u8], NotInflated> {
    let mut stream = Decompress::new(true);
    loop {
        // One byte more than there may be tells that there are more.
        let room = most.saturating_sub(all.len()).saturating_add(1).min(ROOM);
        all.reserve(room);
        let (read, made) = (stream.total_in(), all.len());
        let status = stream.decompress_vec(rest, all, FlushDecompress::None);
        let status = status.map_err(|_| NotInflated::Broken)?;
        let taken = stream.total_in().saturating_sub(read);
        let taken = usize::try_from(taken).unwrap_or(usize::MAX);
        rest = rest.get(taken..).unwrap_or_default();
        if all.len() > most {
            return Err(NotInflated::TooLarge);
        }
        match status {
            Status::StreamEnd => return Ok(rest),
            Status::Ok | Status::BufError if taken == 0 && all.len() == made => {
                return Err(NotInflated::Broken);
            }
            Status::Ok | Status::BufError => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANY: usize = 1 << 20;

    fn deflated(text: &str) -> Vec<u8> {
        let [zlib, ..] = Encoded::of(text.to_owned()).parts(Encoding::Deflate);
        zlib.to_vec()
    }

    #[test]
    fn the_field_says_which_encoding_where_there_is_one_and_else_the_target() {
        let of = |accepted| Encoding::of(Some(accepted), true);
        assert_eq!(Encoding::of(None, true), Encoding::Deflate);
        assert_eq!(Encoding::of(None, false), Encoding::Identity);
        assert_eq!(of("x-zstd, x-tor-lzma, gzip, deflate"), Encoding::Deflate);
        assert_eq!(of("x-zstd,GZIP;q=0.5"), Encoding::Gzip);
        assert_eq!(of("x-zstd, deflate;q=0.0"), Encoding::Identity);
        assert_eq!(of(""), Encoding::Identity);
    }

    #[test]
    fn a_few_bytes_that_would_be_millions_are_refused_before_these_are_there() {
        let bomb = deflated(&"a".repeat(16 << 20));
        assert!(bomb.len() < 20_000, "{} bytes", bomb.len());
        assert_eq!(inflate(&bomb, usize::MAX), Err(NotInflated::TooLarge));
        // So are many that are small one by one.
        let bombs = deflated(&"a".repeat(20_000)).repeat(300);
        assert_eq!(inflate(&bombs, usize::MAX), Err(NotInflated::TooLarge));
        let text = deflated(&"lines of a text\n".repeat(2000));
        assert_eq!(inflate(&text, ANY).map(|all| all.len()), Ok(32_000));
    }

    #[test]
    fn what_is_cut_or_changed_or_nothing_is_refused() {
        let good = deflated("network-status-version 3\n");
        for end in 0..good.len() {
            let cut = inflate(good.get(..end).expect("there"), ANY);
            assert_eq!(cut, Err(NotInflated::Broken), "{end}");
        }
        let mut changed = good.clone();
        *changed.last_mut().expect("there") ^= 1;
        assert_eq!(inflate(&changed, ANY), Err(NotInflated::Broken));
        let garbage = [good.as_slice(), b"x"].concat();
        assert_eq!(inflate(&garbage, ANY), Err(NotInflated::Broken));
    }

    proptest! {
        #[test]
        fn what_was_compressed_is_read_back_one_behind_the_other(texts in prop::collection::vec("[ -~\n]{0,200}", 1..5)) {
            let all: Vec<u8> = texts.iter().flat_map(|text| deflated(text)).collect();
            let whole = texts.concat();
            let read = inflate(&all, whole.len());
            prop_assert_eq!(read.as_deref(), Ok(whole.as_bytes()));
            if let Some(less) = whole.len().checked_sub(1) {
                prop_assert_eq!(inflate(&all, less), Err(NotInflated::TooLarge));
            }
        }

        #[test]
        fn any_bytes_are_read_within_their_bounds_or_refused(bytes: Vec<u8>, most in 0usize..5000) {
            let bytes = [&[0x78, 0x9C][..], &bytes].concat();
            if let Ok(read) = inflate(&bytes, most) {
                prop_assert!(read.len() <= most);
            }
        }
    }
}
