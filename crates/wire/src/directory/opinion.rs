//! What authorities say of a relay, beside what it says of itself: two lines below it in a list or a vote. docs/directory.md, "Flags".

use std::fmt;

use super::{Lines, Malformed};

/// Flags of one relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RelayFlags(u8);

/// What authorities say of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opinion {
    /// What it is good for.
    pub flags: RelayFlags,
    /// What it was measured to carry, in bytes a second.
    pub measured: Option<u64>,
}

impl RelayFlags {
    /// None.
    pub const NONE: Self = Self(0);
    /// Its operator, or what it does to what it carries, is not to be trusted: never the last relay of a path.
    pub const BAD_EXIT: Self = Self(1);
    /// It carries enough for any circuit.
    pub const FAST: Self = Self(2);
    /// It may be the first relay of paths, for months.
    pub const GUARD: Self = Self(4);
    /// Onion services publish their descriptors there.
    pub const HSDIR: Self = Self(8);
    /// It is there for long.
    pub const STABLE: Self = Self(16);
    /// All of them, as they are called, in the order in which they are written.
    pub const NAMES: [(Self, &'static str); 5] = [
        (Self::BAD_EXIT, "badexit"),
        (Self::FAST, "fast"),
        (Self::GUARD, "guard"),
        (Self::HSDIR, "hsdir"),
        (Self::STABLE, "stable"),
    ];

    /// Whether all of these are among them.
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These too.
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// Without these.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// These too, if that is so.
    #[must_use]
    pub const fn with_if(self, flags: Self, is_so: bool) -> Self {
        if is_so { self.with(flags) } else { self }
    }

    fn named(name: &str) -> Option<Self> {
        let mut all = Self::NAMES.into_iter();
        all.find_map(|(flag, known)| (known == name).then_some(flag))
    }
}

impl Opinion {
    /// They say nothing.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The lines that may stand below a relay. Whether the flags are in order is seen when the whole is written again.
    pub(super) fn read(lines: &mut Lines<'_>) -> Result<Self, Malformed> {
        let mut flags = RelayFlags::NONE;
        if let Some(names) = lines.option("flags") {
            for name in names.split(' ') {
                let flag = RelayFlags::named(name);
                flags = flags.with(flag.ok_or_else(|| lines.wrong("flags"))?);
            }
        }
        let measured = lines.option("measured").map(str::parse).transpose();
        Ok(Self {
            flags,
            measured: measured.map_err(|_| lines.wrong("measured"))?,
        })
    }
}

impl fmt::Display for Opinion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.flags != RelayFlags::NONE {
            f.write_str("flags")?;
            let names = RelayFlags::NAMES.iter();
            let mut names = names.filter(|(flag, _)| self.flags.has(*flag));
            names.try_for_each(|(_, name)| write!(f, " {name}"))?;
            f.write_str("\n")?;
        }
        if let Some(measured) = self.measured {
            writeln!(f, "measured {measured}")?;
        }
        Ok(())
    }
}
