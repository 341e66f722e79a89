//! What follows from the table of instructions: their types, their kinds, and their fields.

/// The table, with an entry for each variant of [`super::Instr`]: its fields in the order of the text, and its kinds.
macro_rules! instructions {
    ($($table:tt)*) => {
        variants! { $($table)* }
        kinds! { $($table)* }
    };
}

/// The types, and the fields of a value. A variant has fields, or a struct that has them.
macro_rules! variants {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident
            $(($(#[doc = $says:literal])* $struct:ident { $($(#[doc = $about:literal])* $part:ident: $part_type:ty => $part_kind:ident,)+ }))?
            $({ $($field:ident: $type:ty => $kind:ident,)+ })?
        is $kinds:tt
    )*) => {
        /// What a rank does, one after the other.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Instr {
            $($(#[doc = $doc])+ $name $(($struct))? $({ $($field: $type),+ })?,)*
        }

        $($(
            $(#[doc = $says])*
            #[derive(Clone, Debug, PartialEq)]
            pub struct $struct {
                $($(#[doc = $about])* pub $part: $part_type,)+
            }
        )?)*

        impl Instr {
            /// Its fields, in the order of the table.
            pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
                let mut all = [None; MOST_FIELDS];
                match self {$(
                    $(Instr::$name($struct { $($part),+ }) => fill(&mut all, [$(Field::$part_kind($part)),+]),)?
                    $(Instr::$name { $($field),+ } => fill(&mut all, [$(Field::$kind($field)),+]),)?
                )*}
                all.into_iter().flatten()
            }

            /// The same, to be changed.
            pub fn fields_mut(&mut self) -> impl Iterator<Item = FieldMut<'_>> {
                let mut all = [const { None }; MOST_FIELDS];
                match self {$(
                    $(Instr::$name($struct { $($part),+ }) => fill(&mut all, [$(FieldMut::$part_kind($part)),+]),)?
                    $(Instr::$name { $($field),+ } => fill(&mut all, [$(FieldMut::$kind($field)),+]),)?
                )*}
                all.into_iter().flatten()
            }
        }
    };
}

/// The kinds, and what the table says of each.
macro_rules! kinds {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident $fields:tt
        is {$(
            $(#[doc = $text:literal])+
            $kind:ident $([$how:pat])? $method:literal
                $(as $collective:ident $noun:literal)?
                $(when $last:ident)?
                $(= $($written:literal)+)?;
        )+}
    )*) => {
        /// The kinds of instructions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $($($(#[doc = $text])+ $kind,)+)*
        }

        /// Of each kind, in their order.
        pub(super) static FACTS: &[Facts] = &[$($(
            Facts {
                method: $method,
                collective: collective_of!($($collective)?),
                communicates: is_given!($($collective)?),
                noun: [$($noun,)? "local code"][0],
                when_last: is_given!($($last)?),
                written: &[$($($written),+)?],
                fields: kinds_of!($fields),
                text: &[$($text),+],
            },
        )+)*];

        impl Instr {
            pub fn kind(&self) -> Kind {
                match self {
                    $($(pattern!($name $([$how])?) => Kind::$kind,)+)*
                }
            }
        }

        impl Kind {
            /// All kinds, in the order of the table.
            pub const ALL: &[Kind] = &[$($(Kind::$kind),+),*];

            /// An instruction of this kind whose fields are yet to be set. None for those whose text is not their
            /// fields in turn.
            pub fn blank(self) -> Option<Instr> {
                match self {
                    _ if !self.facts().written.is_empty() => None,
                    $($(Kind::$kind => blank!($name $fields),)+)*
                }
            }
        }
    };
}

/// The pattern of a kind: all of a variant, or the collectives of one form.
macro_rules! pattern {
    ($name:ident) => {
        Instr::$name { .. }
    };
    ($name:ident [$how:pat]) => {
        Instr::$name($name { how: $how, .. })
    };
}

/// A collective by its name; none of a transfer by a table.
macro_rules! collective_of {
    ($(table)?) => {
        None
    };
    ($name:ident) => {
        Some(collective::Collective::$name)
    };
}

macro_rules! is_given {
    () => {
        false
    };
    ($given:ident) => {
        true
    };
}

/// What each field is.
macro_rules! kinds_of {
    (($(#[doc = $says:literal])* $struct:ident { $($(#[doc = $about:literal])* $part:ident: $type:ty => $kind:ident,)+ })) => {
        &[$(FieldKind::$kind),+]
    };
    ({ $($field:ident: $type:ty => $kind:ident,)+ }) => {
        &[$(FieldKind::$kind),+]
    };
}

macro_rules! blank {
    ($name:ident ($($struct:tt)*)) => {
        None
    };
    ($name:ident { $($field:ident: $type:ty => $kind:ident,)+ }) => {
        Some(Instr::$name { $($field: <$type as Blank>::blank()),+ })
    };
}
