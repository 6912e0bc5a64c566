//! TCP options: MSS (RFC 9293 §3.7.1), window scale and timestamps (RFC 7323), SACK permitted (RFC 2018). Others are skipped.
//! Part of [`super`].

/// End of the list.
const END: u8 = 0;
/// Padding.
const NOTHING: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const TIMESTAMPS: u8 = 8;
/// RFC 7323 §2.3: a larger shift is read as this one.
const LARGEST_SCALE: u8 = 14;

/// The options that we know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The largest payload that the sender takes.
    pub mss: Option<u16>,
    /// By how many bits its windows are shifted, at most 14.
    pub window_scale: Option<u8>,
    /// Whether it takes selective acknowledgments.
    pub sack_permitted: bool,
    /// Its clock, and what it last heard of ours.
    pub timestamps: Option<(u32, u32)>,
}

impl Options {
    /// Reads a list as far as it goes: an option of an impossible length ends it.
    pub fn parse(mut octets: &[u8]) -> Self {
        let mut options = Self::default();
        while let Some((&kind, rest)) = octets.split_first() {
            octets = match kind {
                END => break,
                NOTHING => rest,
                kind => {
                    let Some((value, rest)) = value(rest) else {
                        break;
                    };
                    options.take(kind, value);
                    rest
                }
            };
        }
        options
    }

    fn take(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(LARGEST_SCALE)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                let clocks = [[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes);
                self.timestamps = Some(clocks.into());
            }
            _ => {}
        }
    }

    /// How many octets [`Self::write`] appends: whole words of four.
    pub fn written_len(&self) -> usize {
        let len = |there: bool, len: usize| if there { len } else { 0 };
        let all = len(self.mss.is_some(), 4)
            + len(self.window_scale.is_some(), 3)
            + len(self.sack_permitted, 2)
            + len(self.timestamps.is_some(), 10);
        all.next_multiple_of(4)
    }

    /// Appends them, and padding up to a whole word.
    pub fn write(&self, out: &mut Vec<u8>) {
        let end = out.len() + self.written_len();
        if let Some(mss) = self.mss {
            out.extend_from_slice(&[MSS, 4]);
            out.extend_from_slice(&mss.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            out.extend_from_slice(&[WINDOW_SCALE, 3, shift.min(LARGEST_SCALE)]);
        }
        if self.sack_permitted {
            out.extend_from_slice(&[SACK_PERMITTED, 2]);
        }
        if let Some((clock, heard)) = self.timestamps {
            out.extend_from_slice(&[TIMESTAMPS, 10]);
            out.extend_from_slice(&clock.to_be_bytes());
            out.extend_from_slice(&heard.to_be_bytes());
        }
        out.resize(end, END);
    }
}

/// The value of an option and what follows it; `rest` begins with its length, which counts the two octets before the value.
fn value(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = rest.split_first()?;
    rest.split_at_checked(usize::from(len).checked_sub(2)?)
}
