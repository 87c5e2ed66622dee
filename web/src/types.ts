// The records of the server's answers (src/moescale/web/api.py).

export type Num = number | null;

export interface Look {
  experts: number;
  label: string;
  colour: string;
  colour_on_dark: string;
  marker: string;
}

export interface Failure {
  message: string;
  what: string;
  where: string | null;
  nearest: string | null;
  next_step: string | null;
  infeasible: boolean;
}

export interface LawEntry {
  name: string;
  title: string;
  law: string;
  equation: string;
  source: string;
  date: string;
  parameters: Record<string, number>;
  further: Record<string, string>; // inputs besides N, D and E, and what each is where it is not stated
  draws: number;
}

export interface GpuEntry {
  name: string;
  bf16_flops_per_s: number;
  usd_per_gpu_hour: number | null;
  silicon: boolean;
}

export interface Catalogue {
  laws: LawEntry[];
  gpus: GpuEntry[];
  weights: string[];
  kv_cache: string[];
  latency: string[];
  shapes: string[];
  models: { name: string; flops: number }[];
  defaults: Record<string, string>;
  looks: Look[];
  accent: string;
  upload_limit_bytes: number;
}

export interface Curve extends Look {
  beyond_law: boolean;
  n_params: Num[];
  n_params_active: Num[];
  n_params_total: Num[];
  tokens: Num[];
  loss: Num[];
  usd_per_mtok: Num[];
  gpus: Num[];
  batch: Num[];
  prefill_s: Num[];
  decode_s: Num[];
  tpot_s: Num[];
  ttft_s: Num[];
  throughput_tok_s: Num[];
  weight_bytes_per_gpu: Num[];
  kv_bytes_per_token: Num[];
  limited_by: Num[];
  infeasible: Num[];
}

export interface Draft {
  budget_flops: number;
  base_experts: number;
  base_loss: Num;
  confidence: Num;
  base_usd_per_mtok: Num;
  max_loss: Num;
  max_usd_per_mtok: Num;
  gpu_memory_bytes: number;
  memory_fraction: number;
  context_tokens: number;
  usd_per_gpu_hour: number;
  latency_source: string;
  optimum: number;
  curves: Curve[];
  limits: string[];
  reasons: string[];
  notes: string[];
  shape: string;
  command: string;
}

export interface Candidate {
  experts: number;
  n_params?: number;
  n_params_active?: number;
  n_params_total?: number;
  tokens?: number;
  loss?: number;
  usd_per_mtok?: number;
  total_usd?: number; // of a life
  gpus?: number;
  batch?: number;
  training_flops?: number;
  size_ratio?: number;
  cost_ratio?: number;
  probability_at_least_base?: number;
  infeasible?: string;
  intervals?: Record<string, [number, number]>;
}

export interface Figure {
  name: string;
  value: number;
  text: string;
  notes: string[];
  key: boolean; // one of the few that a decision stands on
}

/** The serving figures of one model. */
export interface Served {
  usd_per_mtok: Num;
  gpus: Num;
  batch: Num;
  prefill_s: Num;
  decode_s: Num;
  tpot_s: Num;
  ttft_s: Num;
  throughput_tok_s: Num;
  weight_bytes_per_gpu: Num;
  kv_bytes_per_token: Num;
  limited_by: Num;
  infeasible: Num;
}

/** A table in the command line's words. */
export interface Shown {
  title: string;
  columns: { head: string; text: boolean }[];
  rows: string[][];
}

export interface Decision {
  benefit: string; // over the baseline; empty where there is none
  label: string;
  figures: Figure[];
  facts: [string, string][];
  tables: Shown[];
  why: string;
  caveats: string[];
  accuracy: string;
  model: Candidate;
  serving: Served;
}

export interface Plan {
  budget_flops: number;
  law: string;
  convention: string;
  gpu: string;
  latency_source: string;
  usd_per_gpu_hour: number;
  loss_optimal: Candidate[];
  bounded_loss: { base_experts: number; loss: number; plans: Candidate[] };
  bounded_cost: { base_experts: number; usd_per_mtok?: number; plans: Candidate[] };
  frontier: Candidate[];
  base?: Candidate;
  base_as_built?: Candidate;
  built?: Candidate[]; // the model of each expert count
  decision: Decision;
  shape: string;
  command: string;
  warnings: string[];
  training?: { mfu?: number };
}

export interface Known {
  name: string;
  training_flops: number;
  beyond_law: boolean;
  n_params_active: number;
  n_params_total: number;
  tokens: number;
  loss: number;
  usd_per_mtok: number;
}

/** What lies around the curves: where the draws of all laws lie, and published models. */
export interface Around {
  bands: { experts: number; low: Num[]; high: Num[] }[];
  models: Known[];
}

export interface Scales {
  budget_flops: number[];
  curves: (Look & { n_params: Num[]; tokens: Num[]; loss: Num[] })[];
}
