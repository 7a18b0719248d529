"""The artifact: a directory with all files of one served model. Every file is verified before it is parsed.

    my-model/
      manifest.json       description of the model, and the size and SHA-256 of every other file
      tokenizer.json      for the `tokenizers` library
      weights.safetensors the parameters of the network, int8, bf16 or fp32
      model.safetensors   optional: the parameters in fp32, for the torch engine
      activations.safetensors  optional: fixed ranges of activations, for int8 with onnx_cpu
      head.safetensors    of a model that reads labels: the parameters behind the network, in fp32
      labels.*            of a model that encodes labels by themselves: the tokenizer, weights and golden answers
      golden.npz          golden answers: inputs and the fp32 network's outputs, replayed at start-up
      card.json           origin, and measured accuracy and latency
      certificate.json    optional: how the answers agree with those of fp32, for exactly this manifest
      certificate.sig     optional: the Ed25519 signature of certificate.json

The manifest lists neither of the last two, because the certificate holds its hash, and can be made again and signed.
In the first format, and for a network that no architecture describes, `model.onnx` holds the parameters and a graph.

This package needs only the standard library, so any program can read an artifact without a runtime.
"""

from swiftlet_models.artifact.directory import IMPORTED as IMPORTED
from swiftlet_models.artifact.directory import Artifact as Artifact
from swiftlet_models.artifact.directory import ArtifactError as ArtifactError
from swiftlet_models.artifact.directory import check_self_contained as check_self_contained
from swiftlet_models.artifact.directory import find_artifacts as find_artifacts
from swiftlet_models.artifact.directory import open_artifact as open_artifact
from swiftlet_models.artifact.directory import read_manifest as read_manifest
from swiftlet_models.artifact.directory import seal as seal
from swiftlet_models.artifact.manifest import ACTIVATIONS as ACTIVATIONS
from swiftlet_models.artifact.manifest import CARD as CARD
from swiftlet_models.artifact.manifest import CERTIFICATE as CERTIFICATE
from swiftlet_models.artifact.manifest import FORMATS as FORMATS
from swiftlet_models.artifact.manifest import GOLDEN as GOLDEN
from swiftlet_models.artifact.manifest import HEAD as HEAD
from swiftlet_models.artifact.manifest import LANGUAGE as LANGUAGE
from swiftlet_models.artifact.manifest import MANIFEST as MANIFEST
from swiftlet_models.artifact.manifest import MAX_BYTES as MAX_BYTES
from swiftlet_models.artifact.manifest import MAX_MANIFEST_BYTES as MAX_MANIFEST_BYTES
from swiftlet_models.artifact.manifest import MAX_NAME as MAX_NAME
from swiftlet_models.artifact.manifest import NAME as NAME
from swiftlet_models.artifact.manifest import NAME_RULE as NAME_RULE
from swiftlet_models.artifact.manifest import OF_LABELS as OF_LABELS
from swiftlet_models.artifact.manifest import ONNX as ONNX
from swiftlet_models.artifact.manifest import OPTIONAL as OPTIONAL
from swiftlet_models.artifact.manifest import REQUIRED as REQUIRED
from swiftlet_models.artifact.manifest import SAFETENSORS as SAFETENSORS
from swiftlet_models.artifact.manifest import SIGNATURE as SIGNATURE
from swiftlet_models.artifact.manifest import TOKENIZER as TOKENIZER
from swiftlet_models.artifact.manifest import UNLISTED as UNLISTED
from swiftlet_models.artifact.manifest import WEIGHTS as WEIGHTS
from swiftlet_models.artifact.manifest import AdapterForm as AdapterForm
from swiftlet_models.artifact.manifest import Decisions as Decisions
from swiftlet_models.artifact.manifest import Dense as Dense
from swiftlet_models.artifact.manifest import Embedding as Embedding
from swiftlet_models.artifact.manifest import File as File
from swiftlet_models.artifact.manifest import Fit as Fit
from swiftlet_models.artifact.manifest import Head as Head
from swiftlet_models.artifact.manifest import LabelEncoder as LabelEncoder
from swiftlet_models.artifact.manifest import Labelling as Labelling
from swiftlet_models.artifact.manifest import Manifest as Manifest
from swiftlet_models.artifact.manifest import MultiVector as MultiVector
from swiftlet_models.artifact.manifest import Output as Output
from swiftlet_models.artifact.manifest import Outputs as Outputs
from swiftlet_models.artifact.manifest import PairPrompt as PairPrompt
from swiftlet_models.artifact.manifest import Pooling as Pooling
from swiftlet_models.artifact.manifest import PoolingOption as PoolingOption
from swiftlet_models.artifact.manifest import Precision as Precision
from swiftlet_models.artifact.manifest import Problem as Problem
from swiftlet_models.artifact.manifest import Reading as Reading
from swiftlet_models.artifact.manifest import Side as Side
from swiftlet_models.artifact.manifest import Sparse as Sparse
