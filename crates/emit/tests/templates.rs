//! The table of templates, for `tests/python/rules/test_templates.py`, which runs every row.

#[test]
fn table() {
    let rows: Vec<String> =
        emit::templates().iter().map(|(op, python)| format!("{op} -> {python}")).collect();
    insta::assert_snapshot!(rows.join("\n"));
}
