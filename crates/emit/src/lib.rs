mod python;
mod templates;
pub use templates::templates;
