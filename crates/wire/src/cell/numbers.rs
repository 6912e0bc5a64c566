//! Makes a type of the numbers that a specification lists, with their names. Numbers that it does not list stay readable: later versions may.
//! Every list of numbers in `cell` is made with it.

macro_rules! numbers {
    ($(#[$doc:meta])* pub struct $type:ident($number:ty) { $($(#[$about:meta])* $name:ident = $value:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(pub $number);

        impl $type {
            $($(#[$about])* pub const $name: Self = Self($value);)+

            /// Those that the specification lists, with their names there.
            pub const KNOWN: &'static [(Self, &'static str)] = &[$((Self::$name, stringify!($name))),+];

            /// Its name in the specification, if it has one.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{}({})", stringify!($type), self.0),
                }
            }
        }
    };
}
