// PowerSGD as published, in f64. The tests of powersgd and batched_powersgd compare with it.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace weft::test {

using Matrix = std::vector<std::vector<double>>;  // columns

// Gram-Schmidt on columns; each is divided by its norm plus epsilon.
inline void orthonormalize(Matrix& columns, double epsilon) {
  for (size_t k = 0; k < columns.size(); k++) {
    for (size_t j = 0; j < k; j++) {
      double along = 0;
      for (size_t i = 0; i < columns[k].size(); i++) along += columns[j][i] * columns[k][i];
      for (size_t i = 0; i < columns[k].size(); i++) columns[k][i] -= along * columns[j][i];
    }
    double norm = 0;
    for (const double v : columns[k]) norm += v * v;
    for (double& v : columns[k]) v /= std::sqrt(norm) + epsilon;
  }
}

// One step of PowerSGD on every rank's n x m matrix, with the errors of each rank and a common Q.
struct PowerSgdReference {
  size_t n, m;
  Matrix q, p;
  std::vector<std::vector<double>> errors;
  double epsilon = 0;

  std::vector<double> step(const std::vector<std::vector<double>>& gradients) {
    const size_t ranks = gradients.size(), r = q.size();
    errors.resize(ranks, std::vector<double>(n * m));
    std::vector<std::vector<double>> x = gradients;
    orthonormalize(q, epsilon);
    p.assign(r, std::vector<double>(n));
    for (size_t w = 0; w < ranks; w++) {
      for (size_t i = 0; i < n * m; i++) x[w][i] += errors[w][i];
      for (size_t k = 0; k < r; k++) {
        for (size_t i = 0; i < n * m; i++) p[k][i / m] += x[w][i] * q[k][i % m];
      }
    }
    orthonormalize(p, epsilon);
    Matrix mean(r, std::vector<double>(m));
    for (size_t w = 0; w < ranks; w++) {
      Matrix mine(r, std::vector<double>(m));
      for (size_t k = 0; k < r; k++) {
        for (size_t i = 0; i < n * m; i++) mine[k][i % m] += x[w][i] * p[k][i / m];
        for (size_t j = 0; j < m; j++) mean[k][j] += mine[k][j] / static_cast<double>(ranks);
      }
      errors[w] = x[w];
      for (size_t i = 0; i < n * m; i++) {
        for (size_t k = 0; k < r; k++) errors[w][i] -= p[k][i / m] * mine[k][i % m];
      }
    }
    std::vector<double> out(n * m);
    for (size_t i = 0; i < n * m; i++) {
      for (size_t k = 0; k < r; k++) out[i] += p[k][i / m] * mean[k][i % m];
    }
    q = mean;
    return out;
  }

  // Computes one factor a step, from the orthonormalised other factor of the last step. This is the form of
  // the authors' later code. even: the step computes P.
  std::vector<double> alternating_step(const std::vector<std::vector<double>>& gradients, bool even) {
    const size_t ranks = gradients.size(), r = even ? q.size() : p.size();
    errors.resize(ranks, std::vector<double>(n * m));
    std::vector<std::vector<double>> x = gradients;
    Matrix& in = even ? q : p;
    orthonormalize(in, epsilon);
    const auto in_at = [&](size_t i) { return even ? i % m : i / m; };
    const auto out_at = [&](size_t i) { return even ? i / m : i % m; };
    Matrix mean(r, std::vector<double>(even ? n : m));
    for (size_t w = 0; w < ranks; w++) {
      Matrix mine(r, std::vector<double>(even ? n : m));
      for (size_t i = 0; i < n * m; i++) x[w][i] += errors[w][i];
      errors[w] = x[w];
      for (size_t k = 0; k < r; k++) {
        for (size_t i = 0; i < n * m; i++) mine[k][out_at(i)] += x[w][i] * in[k][in_at(i)];
        for (size_t i = 0; i < n * m; i++) errors[w][i] -= mine[k][out_at(i)] * in[k][in_at(i)];
        for (size_t j = 0; j < mean[k].size(); j++) mean[k][j] += mine[k][j] / static_cast<double>(ranks);
      }
    }
    std::vector<double> out(n * m);
    for (size_t i = 0; i < n * m; i++) {
      for (size_t k = 0; k < r; k++) out[i] += mean[k][out_at(i)] * in[k][in_at(i)];
    }
    (even ? p : q) = mean;
    return out;
  }
};

}  // namespace weft::test
