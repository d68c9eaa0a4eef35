"""Turn probabilities into decisions: class mixes, costs, sets and referrals."""
