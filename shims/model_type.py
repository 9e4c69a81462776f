"""``ModelType.encoder_and_decoder``, which megatron-core dropped in 0.17."""

from __future__ import annotations


class NoSuchModelType:
    """Equals nothing but itself: no model of megatron-core 0.17 or newer is of this type.

    In core 0.14-0.16 the name is a property of the members, so that ``ModelType.encoder_and_decoder``
    is the property object, and every comparison with it is false.  This keeps it so.
    """

    def __repr__(self) -> str:
        return "ModelType.encoder_and_decoder (gone from megatron-core; verl-compat)"

    def __reduce__(self) -> str:
        return "ENCODER_AND_DECODER"


ENCODER_AND_DECODER = NoSuchModelType()
