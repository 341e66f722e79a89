//! Where a pipeline is quicker than anything else.

use cluster::{Cluster, read};

use crate::model::Model;

/// A GPT whose first and last stage share nothing.
pub fn untied() -> Model {
    let text = include_str!("../../../../tests/python/golden/gpt.graph");
    let tied = "param %p_wte_weight f64[101,32] \"wte.weight\" \"lm_head.weight\"";
    let apart =
        "param %p_wte_weight f64[101,32] \"wte.weight\"\nparam %p_head f64[101,32] \"lm_head.weight\"";
    let text =
        text.replace(tied, apart).replace("(%layer_norm_4, %p_wte_weight)", "(%layer_norm_4, %p_head)");
    Model::new(&text)
}

/// Two nodes of two devices, with little between them.
pub fn narrow() -> Cluster {
    let node = "[[nodes]]\ndevices = \"d:2\"\nlink = { bandwidth = \"1 GB/s\", latency = \"1 us\", start = \"1 us\" }\n";
    let text = format!(
        "{node}{node}[network]\nbandwidth = \"10 MB/s\"\nlatency = \"2 us\"\nstart = \"1 us\"\n\
         [devices.d]\nmemory = \"1 GB\"\nbandwidth = \"1 TB/s\"\npeak = {{ f64 = \"1 GFLOP/s\", f32 = \"1 GFLOP/s\" }}\noverhead = \"0 s\"\n"
    );
    read(&text, "narrow.toml").expect("it reads")
}
