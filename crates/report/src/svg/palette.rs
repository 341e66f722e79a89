//! The colours of the page on a light ground, which people with any colour vision tell apart.

/// `#rrggbb` as three numbers.
pub(super) type Colour = [u8; 3];

pub(super) const WHITE: Colour = [0xff, 0xff, 0xff];
pub(super) const INK: Colour = [0x1d, 0x21, 0x29];
pub(super) const SOFT: Colour = [0x5d, 0x66, 0x73];
pub(super) const LINE: Colour = [0xe0, 0xe3, 0xe8];
pub(super) const TRACK: Colour = [0xed, 0xef, 0xf2];
pub(super) const FORWARD: Colour = [0x3a, 0x8f, 0xd0];
pub(super) const BACKWARD: Colour = [0xe3, 0x9a, 0x1f];
pub(super) const WEIGHTS: Colour = [0xc9, 0x68, 0x2b];
pub(super) const RECOMPUTED: Colour = [0xb0, 0x6a, 0xa8];
pub(super) const COPIES: Colour = [0x8b, 0x95, 0xa1];
pub(super) const WAITS: Colour = [0xd8, 0xdc, 0xe2];
pub(super) const OPTIMIZER: Colour = [0x2a, 0x9d, 0x78];
pub(super) const COMMUNICATION: Colour = [0x5f, 0xb6, 0xe5];
pub(super) const EXPOSED: Colour = [0xd6, 0x40, 0x2b];
pub(super) const GOOD: Colour = [0x2a, 0x9d, 0x78];
/// No colour of the page, which has one for each purpose.
pub(super) const MEMORY: Colour = [0xb3, 0xa9, 0xd9];
/// Of dims, in the order in which they occur.
pub(super) const DIMS: [Colour; 7] = [
    [0x00, 0x72, 0xb2],
    [0xe6, 0x9f, 0x00],
    [0x00, 0x9e, 0x73],
    [0xcc, 0x79, 0xa7],
    [0xd5, 0x5e, 0x00],
    [0x56, 0xb4, 0xe9],
    [0x7d, 0x6b, 0xb8],
];

/// So much of a colour on white, from 0 to 1.
pub(super) fn tint(colour: Colour, part: f64) -> Colour {
    colour.map(|it| (255.0 - (255.0 - f64::from(it)) * part).round() as u8)
}

pub(super) fn css([r, g, b]: Colour) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn these_are_the_colours_of_the_page() {
        let style = include_str!("../../viewer/style.css");
        let light = style.split("@media").next().unwrap_or_default();
        let named = [
            ("ink", INK),
            ("soft", SOFT),
            ("line", LINE),
            ("track", TRACK),
            ("forward", FORWARD),
            ("backward", BACKWARD),
            ("weights", WEIGHTS),
            ("recomputed", RECOMPUTED),
            ("copies", COPIES),
            ("waits", WAITS),
            ("optimizer", OPTIMIZER),
            ("communication", COMMUNICATION),
            ("exposed", EXPOSED),
            ("good", GOOD),
        ];
        let dims = ["p0", "p2", "p3", "p6", "p7", "p1", "p8"].into_iter().zip(DIMS);
        for (name, colour) in named.into_iter().chain(dims) {
            assert!(light.contains(&format!("--{name}: {};", css(colour))), "{name} is another in the page");
        }
    }

    #[test]
    fn a_tint_is_between_white_and_the_colour() {
        assert_eq!((tint(INK, 0.0), tint(INK, 1.0)), (WHITE, INK));
    }
}
